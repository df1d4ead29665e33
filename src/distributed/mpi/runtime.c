#include "distributed/mpi/runtime.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/environment_variable.h"
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/mpi/hook_import.h"
#include "distributed/store/pmix.h"

static const double MIN_SLEEP = 20e-6, MAX_SLEEP = 1e-3, SLEEP_SHARE = 1.0 / 16; /* seconds; share of the wait */
static const double END_TICK = 200e-6; /* seconds between tests at the end of the process */
static const double HEARD_TIME = 0.2;  /* seconds for mpirun to forward this process's last output */
static const double LEAVE_TIME = 1;    /* seconds for other threads to leave MPI when the process ends */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards first, last and serving */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static lm_mpi_job *first, **last = &first;
static bool serving;
static int most_tag = 32767; /* the least maximum that the standard allows */

static pid_t owner; /* the process that initialized MPI; a forked child differs */
static _Atomic bool begun, lost, over;
static _Atomic int inside; /* number of MPI calls in progress */

/* ---- permission to call MPI */

bool lm_mpi_enter(void) {
  atomic_fetch_add(&inside, 1);
  if (!atomic_load(&lost) && !atomic_load(&over)) return true;
  atomic_fetch_sub(&inside, 1);
  return false;
}

static lm_status mpi_fail_call(const lm_group *g, lm_status status, const char *text) {
  const char *what = lm_group_ticket(g)->what;
  return lm_fail(status, "%.*s: %s", (int)strcspn(what, " "), what, text);
}

lm_status lm_mpi_fail_refused(lm_group *g) {
  lm_status status = lm_group_check(g); /* a rank's failure is the usual reason */
  if (status != LM_OK) return status;
  return mpi_fail_call(g, LM_E_STATE,
                       atomic_load(&lost) ? "MPI was abandoned after an earlier call failed"
                                          : "MPI has ended, because this process ends");
}

void lm_mpi_leave(void) { atomic_fetch_sub(&inside, 1); }
void lm_mpi_give_up(void) { atomic_store(&lost, true); }
bool lm_mpi_is_lost(void) { return atomic_load(&lost); }

lm_status lm_mpi_fail(lm_group *g, int code) {
  static const char from[] = "MPI says: ";
  char text[sizeof from + MPI_MAX_ERROR_STRING];
  int n;
  strcpy(text, from);
  if (lm_mpi_enter()) {
    MPI_Error_string(code, text + sizeof from - 1, &n);
    lm_mpi_leave();
  }
  lm_mpi_give_up();
  lm_status status = lm_group_await_cause(g);
  return status == LM_OK ? mpi_fail_call(g, LM_E_IO, text) : status;
}

lm_status lm_mpi_did(lm_group *g, int code) {
  lm_mpi_leave();
  return code == MPI_SUCCESS ? LM_OK : lm_mpi_fail(g, code);
}

/* ---- waiting */

void lm_mpi_rest(const lm_group *g, double since, double spin) {
  double waited = lm_seconds() - since, sleep_time = waited * SLEEP_SHARE;
  if (waited < spin) {
    sched_yield();
    return;
  }
  lm_group_pause(g, sleep_time < MIN_SLEEP ? MIN_SLEEP : sleep_time > MAX_SLEEP ? MAX_SLEEP : sleep_time);
}

lm_status lm_mpi_wait(lm_group *g, int n, MPI_Request *requests, double spin) {
  lm_status status = LM_OK;
  double since = lm_seconds();
  for (;; lm_mpi_rest(g, since, spin)) {
    int done = 0;
    TRY(LM_MPI(g, MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE)));
    if (done) return LM_OK;
    TRY(lm_group_check(g));
  }
done:
  lm_mpi_give_up();
  return status;
}

/* ---- blocking calls */

static void *mpi_serve(void *arg) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!first) pthread_cond_wait(&more, &lock);
    lm_mpi_job *job = first;
    first = job->next;
    if (!first) last = &first;
    pthread_mutex_unlock(&lock);
    job->code = job->run(job);
    atomic_store_explicit(&job->done, true, memory_order_release);
    pthread_mutex_lock(&lock);
  }
  return arg;
}

static void mpi_hand_over(lm_mpi_job *job) {
  LM_LOCKED(&lock);
  job->next = NULL;
  *last = job;
  last = &job->next;
  pthread_cond_signal(&more);
}

static bool mpi_is_done(lm_mpi_job *job) { return atomic_load_explicit(&job->done, memory_order_acquire); }

lm_status lm_mpi_run(lm_group *g, lm_mpi_job *job) {
  lm_status status = LM_OK;
  if (!lm_mpi_enter()) {
    lm_free(job);
    return lm_mpi_fail_refused(g);
  }
  lm_mpi_leave();
  mpi_hand_over(job);
  for (double since = lm_seconds(); !mpi_is_done(job); lm_mpi_rest(g, since, 0)) {
    status = lm_group_check(g);
    if (status == LM_OK) continue;
    lm_mpi_give_up();
    return status;
  }
  if (job->code == MPI_SUCCESS) return LM_OK;
  status = lm_mpi_fail(g, job->code);
  lm_free(job);
  return status;
}

/* Starts the thread for all blocking calls; a single one, since the thread that initializes MPI must finalize it. */
static lm_status start_serving(void) {
  lm_status status = LM_OK;
  LM_LOCKED(&lock);
  if (!serving) {
    status = lm_thread_start_detached("lm-mpi", mpi_serve, NULL);
    serving = status == LM_OK;
    if (serving) owner = getpid();
  }
  return status;
}

static int ask_for_tags(void) {
  int *most, found = 0, code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
  if (code == MPI_SUCCESS && found) most_tag = *most;
  return code;
}

int lm_mpi_max_tag(void) { return most_tag; }

/* ---- initializing */

typedef struct begin_job {
  lm_mpi_job job;
  int rank, size, threads;
} begin_job;

static _Atomic bool beginning; /* true during MPI_Init_thread */
static int (*pmix_initialized)(void);

#ifdef LM_HOOK_IMPORT
static int is_known_to_pmix(void) { return !atomic_load(&beginning) && pmix_initialized(); }
#endif

/* Makes Open MPI see PMIx as not initialized during MPI_Init_thread; false if that is impossible or disabled. */
static bool hide_pmix(void) {
#ifdef LM_HOOK_IMPORT
  return lm_variable_is_on(LM_VAR_HOOK_IMPORT, true) &&
         lm_hook_import((void *)MPI_Init_thread, "PMIx_Initialized", (void *)is_known_to_pmix) == LM_OK;
#else
  return false;
#endif
}

/* Works around Open MPI 5's ompi_rte_init (5.0.7), which fails ("local rank ... Not found") if the process has already
 * initialized PMIx, as we have. PMIx counts initializations, so Open MPI may initialize it again: during
 * MPI_Init_thread PMIx_Initialized returns false to it. If its calls cannot be replaced, we finalize our PMIx first,
 * although ranks are then "unable to reach each other" in one job of twelve. Open MPI 4 has no such fault; both are
 * libmpi.so.40. */
static void make_way(void) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int n = 0, major = 0;
  if (MPI_Get_library_version(version, &n) != MPI_SUCCESS || sscanf(version, "Open MPI v%d", &major) != 1 || major < 5)
    return;
  void *pmix = dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
  void *found = pmix ? dlsym(pmix, "PMIx_Initialized") : NULL;
  memcpy(&pmix_initialized, &found, sizeof found);
  if (!found || !hide_pmix()) lm_pmix_leave();
}

static int mpi_begin(lm_mpi_job *job) {
  begin_job *b = (begin_job *)job;
  make_way();
  setvbuf(stderr, NULL, _IOLBF, 0); /* mpirun forwards each write separately, so unbuffered lines would mix */
  atomic_store(&beginning, true);
  int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &b->threads);
  atomic_store(&beginning, false);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, &b->rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, &b->size);
  if (code == MPI_SUCCESS) code = ask_for_tags();
  return code;
}

bool lm_mpi_has_begun(void) { return atomic_load(&begun) && owner == getpid(); }

lm_status lm_mpi_begin(lm_group *g, int rank, int size) {
  lm_status status = LM_OK;
  begin_job *b = NULL;
  if (lm_mpi_has_begun()) return LM_OK;
  NEED(start_serving());
  b = lm_calloc(1, sizeof *b);
  if (!b) return LM_E_OOM;
  b->job.run = mpi_begin;
  NEED(lm_mpi_run(g, &b->job));
  atomic_store(&begun, true);
  if (b->threads < MPI_THREAD_MULTIPLE) {
    status = lm_fail(
        LM_E_MISSING,
        "this MPI supports calls from one thread at a time only (level %d); use one built with MPI_THREAD_MULTIPLE",
        b->threads);
  } else if (b->rank != rank || b->size != size) {
    status =
        lm_fail(LM_E_STATE, "rank mismatch: this process is rank %d of %d for MPI, rank %d of %d for the environment",
                b->rank, b->size, rank, size);
  }
  lm_free(b);
  return status;
}

/* ---- finalizing */

/* Finalizes MPI after a barrier by messages. MPI_Finalize synchronizes the ranks through mpirun, which crashes or hangs
 * if it must end the job meanwhile. */
static int mpi_finalize(lm_mpi_job *job) {
  (void)job;
  MPI_Request all;
  int met = 0, code = MPI_Ibarrier(MPI_COMM_WORLD, &all);
  while (code == MPI_SUCCESS && !met) {
    code = MPI_Test(&all, &met, MPI_STATUS_IGNORE);
    if (!met) lm_sleep(END_TICK);
  }
  return code == MPI_SUCCESS ? MPI_Finalize() : code;
}

/* Finalizes MPI at the end of the process. That waits for all other ranks, so this one says goodbye to them first. */
__attribute__((destructor)) static void finalize_mpi(void) {
  static lm_mpi_job job = {.run = mpi_finalize};
  if (!lm_mpi_has_begun()) return;
  bool failed = lm_group_shutdown();
  if (failed || atomic_load(&lost)) {
    lm_sleep(HEARD_TIME); /* mpirun drops output that it has not read when it ends the job */
    return;
  }
  atomic_store(&over, true);
  for (double until = lm_seconds() + LEAVE_TIME; atomic_load(&inside) > 0 && lm_seconds() < until;) lm_sleep(END_TICK);
  mpi_hand_over(&job);
  while (!mpi_is_done(&job)) lm_sleep(END_TICK);
}
