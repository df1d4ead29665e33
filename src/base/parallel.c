/* Shares loops among a pool of workers, each of which has a slot. The calling thread offers its loop in the slots of
 * idle workers, runs pieces itself, and when none are left withdraws the untaken offers. It waits for pieces that were
 * begun, never for a worker that has no core yet. So any number of threads may call, each with the workers that it
 * finds idle. Each thread starts with its own pieces, about the same ones as in the previous loop and so still in its
 * cache, and continues with those of others.
 *
 * A worker without a loop spins before it sleeps: longer if the last spin avoided a sleep, shorter if not. */
#include "base/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/large_array.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "integers.h"

enum { LINE = 64, MIN_PIECES = 4, MAX_PIECES = 16 /* per thread */, MAX_HELD_SCRATCH = 16 << 20 };

enum { /* nanoseconds */
       MIN_WORK = 30000,
       MIN_EACH = 15000,      /* for one thread's part: sharing a loop costs one microsecond, more on busy cores */
       MIN_PIECE = 4000,      /* handing out a piece costs up to 100 */
       WORTH_WAKING = 100000, /* a sleeping worker starts 30 to 50 microseconds after its wakeup */
       RECENT = 200000,       /* loops this close to one another justify waking together */
       MIN_SPIN = 5000,
       MAX_SPIN = 200000,
       JOIN_SPIN = 20000,
       LOST_CORE = 50000,    /* between two polls: another program has the core, and spinning would only take it back */
       MOVE_AFTER = 1000000, /* between two moves of a worker that is back on its caller's core */
};

/* The first failure of a loop. */
typedef struct failure {
  _Atomic bool noted;
  lm_saved_error first;
} failure;

typedef struct loop {
  lm_parallel_fn *fn;
  void *ctx;
  int64_t units;
  size_t scratch_bytes;
  failure *failure;
  int threads, each;                                /* the number of pieces is threads * each */
  int core;                                         /* the caller's core */
  _Alignas(LINE) _Atomic int finished;              /* number of workers done with it, plus CALLER_SLEEPS */
  _Alignas(LINE) _Atomic int taken[LM_MAX_THREADS]; /* each thread's begun pieces plus its failed attempts */
} loop;

enum { CALLER_SLEEPS = 1 << 30 };

typedef struct worker {
  _Alignas(LINE) _Atomic(loop *) offer; /* NULL: idle; &busy: running a loop */
  _Atomic int asleep;
  int64_t spin, moved; /* nanoseconds: the limit of its next spin; the time of its last move off a caller's core */
  pthread_t id;
} worker;

static loop busy; /* its address in `offer` marks a worker that runs a loop; its fields are unused */
static worker workers[LM_MAX_THREADS];
static _Atomic int started; /* number of workers; 0 again in a forked child */
LM_MUTEX(starting);
static _Atomic int64_t latest_end; /* end of the latest loop of any thread, nanoseconds */

static _Atomic int threads_set;       /* the process's number; 0: not set */
static _Atomic int max_granted;       /* number the system granted if below the request; 0: no limit seen */
static int at_start;                  /* default number of threads */
static _Thread_local int own_threads; /* number for a thread with its own script; 0: the process's */
static _Thread_local bool inside;     /* true within a loop's function */

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

static void futex_wait(_Atomic int *word, int value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake(_Atomic int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

/* ---- scratch memory: each thread keeps one block for its next loop; nested loops allocate others */

typedef struct block {
  void *memory; /* pointer to pass to lm_free */
  size_t bytes;
  bool in_use;
} block;

static pthread_key_t block_key;
static _Thread_local void *scratch_here;

void *lm_scratch(void) { return scratch_here; }

static void *memory_of(block *b) { return b ? (char *)b + LINE : NULL; }

static void block_free(void *b) {
  if (b) lm_free(((block *)b)->memory);
}

static block *block_new(size_t bytes) {
  char *memory = lm_malloc(bytes + 2 * LINE);
  block *b = (block *)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
  if (b) *b = (block){memory, bytes, false};
  return b;
}

static block *scratch_take(size_t bytes) {
  block *kept = pthread_getspecific(block_key);
  if (kept && kept->in_use) return block_new(bytes);
  if (!kept || kept->bytes < bytes) {
    block_free(kept);
    kept = block_new(bytes);
    if (pthread_setspecific(block_key, kept) != 0) return kept;
  }
  if (kept) kept->in_use = true;
  return kept;
}

static void scratch_release(block *b) {
  if (!b) return;
  b->in_use = false;
  bool kept = b == pthread_getspecific(block_key);
  if (kept && b->bytes <= MAX_HELD_SCRATCH) return;
  if (kept) pthread_setspecific(block_key, NULL);
  block_free(b);
}

static _Thread_local failure *failure_here; /* the failure of the innermost loop this thread runs */

void lm_parallel_note(lm_status status) {
  if (status != LM_OK && !atomic_exchange(&failure_here->noted, true)) lm_error_save(status, &failure_here->first);
}

/* ---- running */

static void run_pieces(loop *l, int thread) {
  int64_t pieces = (int64_t)l->threads * l->each;
  inside = true;
  for (int k = 0; k < l->threads; k++) {
    int of = (thread + k) % l->threads;
    if (atomic_load_explicit(&l->taken[of], memory_order_relaxed) >= l->each) continue;
    for (int i; (i = atomic_fetch_add_explicit(&l->taken[of], 1, memory_order_relaxed)) < l->each;) {
      int64_t piece = (int64_t)of * l->each + i, first = lm_part_begin(l->units, piece, pieces);
      int64_t last = lm_part_begin(l->units, piece + 1, pieces);
      if (first < last) l->fn(l->ctx, first, last);
    }
  }
  inside = false;
}

static void run_offered(loop *l, int thread) {
  block *scratch = l->scratch_bytes ? scratch_take(l->scratch_bytes) : NULL;
  if ((l->scratch_bytes && !scratch) || !lm_large_ready()) { /* the caller has both, and runs all pieces */
    scratch_release(scratch);
    return;
  }
  scratch_here = memory_of(scratch);
  failure_here = l->failure;
  run_pieces(l, thread);
  scratch_release(scratch);
}

static loop *spin_for_offer(worker *w) {
  int64_t begin = lm_nanoseconds(), before = begin;
  for (;;) {
    for (int i = 0; i < 16; i++) {
      loop *l = atomic_load_explicit(&w->offer, memory_order_relaxed);
      if (l) return l;
      relax();
    }
    int64_t t = lm_nanoseconds();
    if (t - begin > w->spin || t - before > LOST_CORE) return NULL;
    before = t;
  }
}

static loop *await_offer(worker *w) {
  loop *l = spin_for_offer(w);
  bool spared = l != NULL; /* true if spinning avoided a sleep */
  if (!l) {
    int64_t begin = lm_nanoseconds();
    for (;;) {
      atomic_store(&w->asleep, 1);
      if ((l = atomic_load(&w->offer))) break;
      futex_wait(&w->asleep, 1);
    }
    atomic_store(&w->asleep, 0);
    spared = lm_nanoseconds() - begin < MAX_SPIN; /* true if a longer spin would have avoided it */
  }
  int64_t spin = spared ? w->spin * 2 : w->spin / 2;
  w->spin = spin < MIN_SPIN ? MIN_SPIN : spin > MAX_SPIN ? MAX_SPIN : spin;
  return l;
}

static void keep_off(worker *w, int core) {
  if (lm_this_core() != core) return;
  int64_t t = lm_nanoseconds();
  if (t - w->moved < MOVE_AFTER) return;
  w->moved = t;
  lm_leave_core(core);
}

static void *run_worker(void *arg) {
  worker *w = arg;
  for (;;) {
    loop *l = await_offer(w);
    if (!atomic_compare_exchange_strong(&w->offer, &l, &busy)) continue; /* withdrawn */
    keep_off(w, l->core);
    run_offered(l, (int)(w - workers + 1) % l->threads);
    atomic_store_explicit(&w->offer, NULL, memory_order_release);
    /* After this addition the loop may be gone: then the wakeup is a spurious one for whatever waits at that
     * address. */
    if (atomic_fetch_add(&l->finished, 1) & CALLER_SLEEPS) futex_wake(&l->finished);
  }
  return NULL;
}

/* Offers the loop to idle workers; returns their number and, in `asked`, their indices. Does not wake sleeping workers
 * for a loop that would end before they start. */
static int offer(loop *l, double work_ns, int16_t *asked) {
  bool wakes =
      work_ns >= WORTH_WAKING || lm_nanoseconds() - atomic_load_explicit(&latest_end, memory_order_relaxed) < RECENT;
  int n = 0, there = atomic_load_explicit(&started, memory_order_acquire);
  for (int i = 0; i < there && n < l->threads - 1; i++) {
    worker *w = &workers[i];
    loop *idle = NULL;
    if (atomic_load_explicit(&w->offer, memory_order_relaxed)) continue;
    if (!wakes && atomic_load_explicit(&w->asleep, memory_order_relaxed)) continue;
    if (!atomic_compare_exchange_strong(&w->offer, &idle, l)) continue;
    asked[n++] = (int16_t)i;
    if (atomic_load(&w->asleep) && atomic_exchange(&w->asleep, 0)) futex_wake(&w->asleep);
  }
  return n;
}

/* Withdraws untaken offers and waits until the workers that took the loop are done. */
static void join_loop(loop *l, int n, const int16_t *asked) {
  int working = 0;
  for (int k = 0; k < n; k++) {
    loop *untaken = l;
    if (!atomic_compare_exchange_strong(&workers[asked[k]].offer, &untaken, NULL)) working++;
  }
  for (int64_t begin = 0;;) {
    for (int i = 0; i < 16; i++) {
      if (atomic_load_explicit(&l->finished, memory_order_acquire) == working) return;
      relax();
    }
    if (begin == 0) begin = lm_nanoseconds();
    if (lm_nanoseconds() - begin > JOIN_SPIN) break;
  }
  int finished = atomic_fetch_or(&l->finished, CALLER_SLEEPS) | CALLER_SLEEPS;
  while ((finished & ~CALLER_SLEEPS) != working) {
    futex_wait(&l->finished, finished);
    finished = atomic_load(&l->finished);
  }
}

static void run_on_threads(loop *l, double work_ns) {
  int16_t asked[LM_MAX_THREADS];
  int n = offer(l, work_ns, asked);
  run_pieces(l, 0);
  join_loop(l, n, asked);
  atomic_store_explicit(&latest_end, lm_nanoseconds(), memory_order_relaxed);
}

lm_status lm_parallel(int64_t units, double work_ns, size_t scratch_bytes, lm_parallel_fn *fn, void *ctx) {
  if (units <= 0) return LM_OK;
  void *outer_scratch = scratch_here;
  failure *outer_failure = failure_here, noted;
  block *scratch = scratch_bytes ? scratch_take(scratch_bytes) : NULL;
  if (scratch_bytes && !scratch) return LM_E_OOM;
  scratch_here = memory_of(scratch);
  failure_here = &noted;
  noted.noted = false;
  int threads = lm_threads_for(work_ns);
  if (threads > units) threads = (int)units;
  if (threads > 1) {
    const double most = work_ns / threads / MIN_PIECE;
    int each = most < MIN_PIECES ? MIN_PIECES : most > MAX_PIECES ? MAX_PIECES : (int)most;
    if (units < (int64_t)threads * each) each = (int)lm_ceil_div(units, threads);
    loop l = {.fn = fn,
              .ctx = ctx,
              .units = units,
              .scratch_bytes = scratch_bytes,
              .failure = &noted,
              .threads = threads,
              .each = each,
              .core = lm_this_core()};
    run_on_threads(&l, work_ns);
  } else {
    fn(ctx, 0, units);
  }
  scratch_here = outer_scratch;
  failure_here = outer_failure;
  scratch_release(scratch);
  return noted.noted ? lm_error_restore(&noted.first) : LM_OK;
}

/* ---- how many threads there are */

static bool start_worker(worker *w) {
  w->spin = MAX_SPIN;
  return lm_thread_start(NULL, "lm-compute", &w->id, run_worker, w) == LM_OK;
}

static void start_workers(int n) {
  LM_LOCKED(&starting);
  int have = 1 + atomic_load(&started);
  while (have < n && start_worker(&workers[have - 1])) atomic_store_explicit(&started, have++, memory_order_release);
  if (have < n && atomic_load(&max_granted) == 0) {
    int granted = have - have / 4; /* leave some for the rest of the program */
    atomic_store(&max_granted, granted);
    lm_print_stderr("luminary: computing on %d %s, since the system does not grant %d (ulimit -u, ulimit -v)", granted,
                    granted == 1 ? "thread" : "threads", n);
  }
}

int lm_num_threads(void) {
  int n = own_threads > 0 ? own_threads : atomic_load_explicit(&threads_set, memory_order_relaxed);
  if (n == 0) n = at_start;
  int granted = atomic_load_explicit(&max_granted, memory_order_relaxed), limit = lm_thread_limit();
  if (granted > 0 && granted < n) n = granted;
  if (limit > 0 && limit < n) n = limit;
  return n < LM_MAX_THREADS ? n : LM_MAX_THREADS;
}

void lm_set_num_threads(int n) {
  if (lm_is_script_thread()) {
    own_threads = n > 0 ? n : 0;
  } else {
    atomic_store_explicit(&threads_set, n > 0 ? n : 0, memory_order_relaxed);
    atomic_store_explicit(&max_granted, 0, memory_order_relaxed);
  }
}

int lm_threads_for(double work_ns) {
  if (work_ns < MIN_WORK || inside) return 1;
  int all = lm_num_threads();
  if (all > 1 + atomic_load_explicit(&started, memory_order_acquire)) {
    start_workers(all);
    all = lm_num_threads();
  }
  return work_ns / MIN_EACH < all ? (int)(work_ns / MIN_EACH) : all;
}

/* Empties the workers' slots of a forked child, which has this thread alone. It computes on one thread until it calls
 * lm_set_num_threads: a server with a child for each core has no core left for more. */
static void limit_child(void) {
  memset(workers, 0, sizeof workers);
  atomic_store(&started, 0);
  atomic_store(&max_granted, 1);
}

static int threads_at_start(void) {
  const char *given = getenv("OMP_NUM_THREADS"); /* the variable that launchers set; the first of a list counts */
  long n = given ? strtol(given, NULL, 10) : 0;
  if (n > 0) return n < LM_MAX_THREADS ? (int)n : LM_MAX_THREADS;
  n = lm_cores();
  return n < LM_MAX_THREADS ? (int)n : LM_MAX_THREADS;
}

__attribute__((constructor)) static void start(void) {
  at_start = threads_at_start();
  pthread_key_create(&block_key, block_free);
  pthread_atfork(NULL, NULL, limit_child);
}
