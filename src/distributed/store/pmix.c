#include "distributed/store/pmix.h"

#ifndef LM_PMIX

lm_status lm_pmix_check(void) {
  return lm_fail(LM_E_MISSING, "this build has no PMIx (on Debian: install libpmix-dev and build again)");
}

lm_status lm_pmix_put(const char *key, const char *value) {
  (void)key, (void)value;
  return lm_pmix_check();
}

lm_status lm_pmix_get(const char *key, char *value, size_t capacity, const lm_deadline *p) {
  (void)key, (void)value, (void)capacity, (void)p;
  return lm_pmix_check();
}

void lm_pmix_leave(void) {}

#else

#include <dlfcn.h>
#include <pmix.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"

enum {
  VALUE = 512,
  KEY = 128,
  GIVE_UP = 1 /* seconds after which the launcher's server reports that a key is not set */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards pmix */
static struct pmix {
  void *library;
  bool ready;    /* true once PMIx_Init succeeded */
  pid_t process; /* the process that called it */
  pmix_proc_t self;
  __typeof__(&PMIx_Init) init;
  __typeof__(&PMIx_Finalize) finalize;
  __typeof__(&PMIx_Put) put;
  __typeof__(&PMIx_Commit) commit;
  __typeof__(&PMIx_Get_nb) get;
  __typeof__(&PMIx_Error_string) error;
} pmix;

/* ---- the library */

static lm_status pmix_load(void) {
  const struct {
    const char *name;
    void *at;
  } wanted[] = {{"PMIx_Init", &pmix.init},     {"PMIx_Finalize", &pmix.finalize}, {"PMIx_Put", &pmix.put},
                {"PMIx_Commit", &pmix.commit}, {"PMIx_Get_nb", &pmix.get},        {"PMIx_Error_string", &pmix.error}};
  if (!getenv("PMIX_NAMESPACE") || !getenv("PMIX_RANK"))
    return lm_fail(LM_E_MISSING, "PMIX_NAMESPACE and PMIX_RANK are not set, as mpirun and srun --mpi=pmix do");
  if (pmix.library) return LM_OK;
  void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_NODELETE);
  if (!library) return lm_fail(LM_E_MISSING, "%s", dlerror());
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *found = dlsym(library, wanted[i].name);
    if (!found) return lm_fail(LM_E_MISSING, "libpmix.so.2 has no %s", wanted[i].name);
    memcpy(wanted[i].at, &found, sizeof found);
  }
  pmix.library = library;
  return LM_OK;
}

lm_status lm_pmix_check(void) {
  LM_LOCKED(&lock);
  return pmix_load();
}

static lm_status fail_pmix(const char *call, pmix_status_t code) {
  return lm_fail(LM_E_IO, "%s: %s", call, pmix.error(code));
}

/* Finalizes PMIx; mpirun reports a process that ends without it as failed. */
static void pmix_finish(void) {
  if (!pmix.ready || pmix.process != getpid()) return;
  pmix.finalize(NULL, 0);
  pmix.ready = false;
}

void lm_pmix_leave(void) {
  LM_LOCKED(&lock);
  pmix_finish();
}

/* Initializes PMIx until the end of the process or lm_pmix_leave. A later MPI_Init of Open MPI 4 shares this PMIx,
 * since it cannot initialize it again. */
static lm_status pmix_begin(void) {
  NEED(pmix_load());
  if (pmix.ready && pmix.process != getpid())
    return lm_fail(LM_E_STATE, "this process was forked after PMIx_Init; only its parent can use PMIx");
  if (pmix.ready) return LM_OK;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are blocked for the thread that PMIx starts */
  pmix_status_t code = pmix.init(&pmix.self, NULL, 0);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != PMIX_SUCCESS)
    return lm_fail(LM_E_STATE,
                   "cannot reach the launcher's PMIx server (PMIx_Init: %s); set MASTER_ADDR (the host of rank 0) and "
                   "MASTER_PORT, or pass init_method = \"tcp://host:port\" or \"file:///path/all/see\"",
                   pmix.error(code));
  static bool finishes;
  pmix.ready = true;
  pmix.process = getpid();
  if (!finishes) finishes = atexit(pmix_finish) == 0;
  return LM_OK;
}

/* ---- publishing */

lm_status lm_pmix_put(const char *key, const char *value) {
  lm_status status = LM_OK;
  char text[VALUE];
  LM_LOCKED(&lock);
  NEED(pmix_begin());
  if (pmix.self.rank != 0)
    return lm_fail(LM_E_ARG,
                   "rank 0 must be rank 0 of the launcher's job, got rank %u; pass init_method tcp:// or file://",
                   (unsigned)pmix.self.rank);
  snprintf(text, sizeof text, "%s", value);
  pmix_value_t v = {.type = PMIX_STRING, .data.string = text};
  pmix_status_t code = pmix.put(PMIX_GLOBAL, key, &v);
  if (code == PMIX_SUCCESS) code = pmix.commit();
  if (code != PMIX_SUCCESS) status = fail_pmix("PMIx_Put", code);
  return status;
}

/* ---- getting: a caller whose deadline passes leaves the request to the library's thread */

typedef struct question {
  _Atomic int holders;   /* references: the caller's and the library's */
  _Atomic bool answered; /* true once code and value are set */
  int wakeup_fd;         /* readable once answered */
  pmix_status_t code;
  pmix_proc_t whom;
  pmix_info_t how;
  char key[KEY], value[VALUE];
} question;

static void pmix_let_go(question *q) {
  if (atomic_fetch_sub(&q->holders, 1) > 1) return;
  close(q->wakeup_fd);
  lm_free(q);
}

static void take_answer(pmix_status_t code, pmix_value_t *value, void *ctx) {
  question *q = ctx;
  q->code = code;
  if (code == PMIX_SUCCESS && value && value->type == PMIX_STRING && value->data.string)
    snprintf(q->value, sizeof q->value, "%s", value->data.string);
  atomic_store(&q->answered, true);
  lm_wakeup_fd_signal(q->wakeup_fd);
  pmix_let_go(q);
}

/* Starts a request for rank 0's key. Without PMIX_IMMEDIATE, which would never find a key of another node: only a
 * waiting request fetches from other nodes. */
static lm_status pmix_ask(const char *key, question **out) {
  lm_status status = LM_OK;
  question *q = lm_calloc(1, sizeof *q);
  if (!q) return LM_E_OOM;
  atomic_store(&q->holders, 2);
  q->wakeup_fd = lm_wakeup_fd_new();
  q->whom = pmix.self;
  q->whom.rank = 0;
  snprintf(q->key, sizeof q->key, "%s", key);
  q->how = (pmix_info_t){.key = PMIX_TIMEOUT, .value = {.type = PMIX_INT, .data.integer = GIVE_UP}};
  pmix_status_t code =
      q->wakeup_fd < 0 ? PMIX_ERR_OUT_OF_RESOURCE : pmix.get(&q->whom, q->key, &q->how, 1, take_answer, q);
  if (code == PMIX_SUCCESS) {
    *out = q;
  } else {
    status = fail_pmix("PMIx_Get", code);
    if (q->wakeup_fd >= 0) close(q->wakeup_fd);
    lm_free(q);
  }
  return status;
}

lm_status lm_pmix_get(const char *key, char *value, size_t capacity, const lm_deadline *p) {
  question *q = NULL;
  pthread_mutex_lock(&lock);
  lm_status status = pmix_begin();
  if (status == LM_OK) status = pmix_ask(key, &q);
  pthread_mutex_unlock(&lock);
  if (status != LM_OK) return status;
  while (status == LM_OK && !atomic_load(&q->answered)) status = lm_net_await(q->wakeup_fd, POLLIN, p);
  if (status == LM_OK && q->code != PMIX_SUCCESS) {
    status = fail_pmix("PMIx_Get", q->code);
  } else if (status == LM_OK) {
    snprintf(value, capacity, "%s", q->value);
  }
  pmix_let_go(q);
  return status;
}

#endif
