#include "base/mapping_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/thread.h"

/* A guarded mapping; never freed, since the signal handler walks the list without a lock, but reused if not lost. */
struct lm_mapping_guard {
  lm_mapping_guard *next;
  _Atomic(char *) data; /* start of the mapping; NULL: unused */
  size_t bytes;
  _Atomic(char *) lost;       /* start of the zeros that replace the lost part; NULL: nothing is lost */
  _Atomic unsigned last_read; /* value of lm_truncations when lost memory was last read; 0: never */
  char path[1024];
};

_Atomic unsigned lm_truncations;
static _Thread_local unsigned reported; /* value of lm_truncations at this thread's last report */
static _Atomic(lm_mapping_guard *) all;
LM_MUTEX(lock); /* protects the list and reports */
static struct sigaction before;
static _Atomic int watched; /* number of files mapped now */
static bool installed;      /* true if our handler is installed, perhaps behind another */
static int nothing = -1;    /* an empty file: reading memory mapped to it raises SIGBUS */
static uintptr_t page;

static lm_mapping_guard *guard_at(const char *position) {
  for (lm_mapping_guard *w = atomic_load(&all); w; w = w->next) {
    char *data = atomic_load(&w->data);
    if (data && position >= data && position < data + w->bytes) return w;
  }
  return NULL;
}

/* Maps zeros from position's page to the mapping's end, which a truncated file lacks. False if mmap fails. */
static bool map_zeros(lm_mapping_guard *w, char *position) {
  char *from = (char *)((uintptr_t)position & ~(page - 1)), *end = atomic_load(&w->data) + w->bytes;
  void *zeros = mmap(from, (size_t)(end - from), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (zeros == MAP_FAILED) return false;
  char *lost = atomic_load(&w->lost);
  while ((!lost || from < lost) && !atomic_compare_exchange_weak(&w->lost, &lost, from)) continue;
  atomic_store(&w->last_read, atomic_load(&lm_truncations) + 1); /* not 0 (never) until the next line */
  atomic_store(&w->last_read, atomic_fetch_add(&lm_truncations, 1) + 1);
  return true;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
  lm_mapping_guard *w = info->si_code > 0 ? guard_at(info->si_addr) : NULL;
  if (w && map_zeros(w, info->si_addr)) return;
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(number, &before, NULL); /* the instruction then faults again */
    if (info->si_code <= 0) raise(number);
  }
}

static void start(void) {
  page = (uintptr_t)sysconf(_SC_PAGESIZE);
  nothing = lm_fd_above_stdio(memfd_create("luminary", MFD_CLOEXEC));
}

/* Counts files, locked; installs our handler for the first, removes it after the last if no later one replaced it. */
static void count_watched(int change) {
  struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
  watched += change;
  if (watched == 1 && !installed) {
    installed = sigaction(SIGBUS, &ours, &before) == 0;
  } else if (watched == 0 && sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == on_bus_error) {
    installed = sigaction(SIGBUS, &before, NULL) != 0;
  }
}

lm_status lm_mapping_guard_new(const char *path, char *data, size_t bytes, lm_mapping_guard **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  pthread_mutex_lock(&lock);
  lm_mapping_guard *w = atomic_load(&all);
  while (w && (atomic_load(&w->data) || atomic_load(&w->last_read))) w = w->next;
  if (!w && (w = lm_calloc(1, sizeof *w))) {
    w->next = atomic_load(&all);
    atomic_store(&all, w);
  }
  if (w) {
    lm_write(w->path, sizeof w->path, "%s", path);
    w->bytes = bytes;
    atomic_store(&w->lost, NULL);
    atomic_store(&w->data, data);
    count_watched(1);
  }
  pthread_mutex_unlock(&lock);
  *out = w;
  return w ? LM_OK : LM_E_OOM;
}

void lm_mapping_guard_free(lm_mapping_guard *w) {
  if (!w) return;
  LM_LOCKED(&lock);
  atomic_store(&w->data, NULL);
  count_watched(-1);
}

int lm_mapping_guards(void) { return watched; }

void lm_truncation_begin(void) { reported = atomic_load(&lm_truncations); }

lm_status lm_truncation_check_read(const void *position) {
  if (guard_at(position)) (void)*(const volatile char *)position;
  return lm_truncation_check();
}

lm_status lm_truncation_report(void) {
  enum { SHOWN = 3 };
  const lm_mapping_guard *shown[SHOWN] = {NULL};
  unsigned now = atomic_load(&lm_truncations), before_that = reported;
  if (now == before_that) return LM_OK;
  int n = 0;
  pthread_mutex_lock(&lock);
  for (lm_mapping_guard *w = atomic_load(&all); w; w = w->next) {
    char *data = atomic_load(&w->data), *lost = data ? atomic_exchange(&w->lost, NULL) : NULL;
    if (atomic_load(&w->last_read) > before_that && n++ < SHOWN) shown[n - 1] = w;
    if (!lost || nothing < 0) continue;
    mmap(lost, (size_t)(data + w->bytes - lost), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
         nothing, 0);
  }
  pthread_mutex_unlock(&lock);
  reported = now;
  char more[32] = "";
  if (n > SHOWN) lm_write(more, sizeof more, " and %d more", n - SHOWN);
  return lm_fail(LM_E_IO, "%s%s%s%s%s%s %s truncated while mapped; the values of tensors over %s are lost",
                 shown[0] ? shown[0]->path : "a file", shown[1] ? ", " : "", shown[1] ? shown[1]->path : "",
                 shown[2] ? ", " : "", shown[2] ? shown[2]->path : "", more, n > 1 ? "were" : "was",
                 n > 1 ? "them" : "it");
}
