#include "distributed/store/sigterm.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/message.h"
#include "base/thread.h"

static const double grace = 1.0, last_words = 0.05; /* seconds for failing calls; at least, for stores */
static const double repeats = 1.0;                  /* seconds in which copies count as one: launchers forward them */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards users, thread, installed */
static int users;                                        /* number of lm_sigterm_watch without unwatch */
static pthread_t thread;
static bool installed;             /* true if the handler and its thread are installed for the users */
static struct sigaction foreign;   /* the action before lm_sigterm_defer; its handler is called as well */
static _Atomic int wakeup_fd = -1; /* signaled by the handler, which may run at any time: never closed */
static _Atomic int owner;          /* id of the process that installed the handler */
static _Atomic bool asked, quit;
static _Atomic bool deferred, came; /* lm_sigterm_defer was called; a SIGTERM came after that */
static _Atomic int64_t came_at;     /* microseconds of lm_seconds() */
static _Atomic int waits, stores;
static _Atomic int64_t failed_at = -1000000; /* microseconds of lm_seconds() */

void lm_sigterm_wait_begins(void) { atomic_fetch_add_explicit(&waits, 1, memory_order_relaxed); }

void lm_sigterm_wait_ends(void) { atomic_fetch_sub_explicit(&waits, 1, memory_order_release); }

void lm_sigterm_failed(void) { atomic_store(&failed_at, (int64_t)(lm_seconds() * 1e6)); }

void lm_sigterm_stores(int by) { atomic_fetch_add(&stores, by); }

static bool failed_just_now(void) { return lm_seconds() - (double)atomic_load(&failed_at) * 1e-6 < grace; }

static bool nobody_waits(void) { return atomic_load_explicit(&waits, memory_order_acquire) == 0 && !failed_just_now(); }

bool lm_sigterm_asked(void) { return atomic_load_explicit(&asked, memory_order_relaxed); }

/* Returns true for the first SIGTERM after lm_sigterm_defer and its copies within `repeats`. */
static bool is_asked_for(void) {
  double now = lm_seconds();
  if (atomic_exchange(&came, true)) return now - (double)atomic_load(&came_at) * 1e-6 < repeats;
  atomic_store(&came_at, (int64_t)(now * 1e6));
  return true;
}

/* Handles SIGTERM on the script's thread, by async-signal-safe calls only. Ignores the wakeup descriptor in a forked
 * child, which shares it. */
static void on_term(int signal_number, siginfo_t *info, void *context) {
  int error = errno;
  bool ours = atomic_load(&owner) == (int)getpid();
  if (ours && atomic_load(&deferred) && foreign.sa_handler != SIG_DFL) {
    atomic_store(&came, true);
    if (foreign.sa_flags & SA_SIGINFO)
      foreign.sa_sigaction(signal_number, info, context);
    else if (foreign.sa_handler != SIG_IGN)
      foreign.sa_handler(signal_number);
  } else if (ours && atomic_load(&deferred) && is_asked_for()) {
    /* the script saves first: it polls lm_sigterm_came */
  } else if (ours && (atomic_load(&stores) > 0 || !nobody_waits())) {
    atomic_store(&asked, true);
    lm_wakeup_fd_signal(atomic_load(&wakeup_fd));
  } else {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
  errno = error;
}

static bool is_ours(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_term;
}

static void default_again(void) {
  struct sigaction now;
  if (sigaction(SIGTERM, NULL, &now) != 0 || !is_ours(&now)) return;
  now = (struct sigaction){.sa_handler = SIG_DFL};
  sigaction(SIGTERM, &now, NULL);
}

static void end_process(void) {
  default_again();
  kill(getpid(), SIGTERM);
}

/* Waits, at most `grace`, so that waiting calls learn the cause and a failed one can end the script. */
static void give_time(void) {
  double now = lm_seconds(), until = now + grace, least = atomic_load(&stores) > 0 ? now + last_words : now;
  for (; now < until && (now < least || !nobody_waits()); now = lm_seconds()) lm_sleep(5e-3);
}

static void *sigterm_serve(void *arg) {
  for (;;) {
    lm_wakeup_fd_clear(atomic_load(&wakeup_fd));
    if (atomic_load(&asked)) {
      give_time();
      end_process();
      return arg;
    }
    if (atomic_load(&quit)) return arg;
  }
}

/* Sets a signal stack for the main thread, which gets the process's signals: compiled kernels (oneDNN's) may point
 * the stack pointer into memory of theirs with little room below. */
static void give_stack(void) {
  static char stack[64 << 10];
  stack_t now;
  if (syscall(SYS_gettid) != getpid() || sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE)) return;
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
}

static void take_signal(void) {
  atomic_store(&owner, (int)getpid());
  give_stack();
  struct sigaction handler = {.sa_sigaction = on_term, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO};
  sigemptyset(&handler.sa_mask);
  sigaction(SIGTERM, &handler, NULL);
}

static lm_status install(void) {
  struct sigaction now;
  if (sigaction(SIGTERM, NULL, &now) != 0) return LM_OK;
  if (is_ours(&now) ? foreign.sa_handler != SIG_DFL : (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL)
    return LM_OK;
  if (atomic_load(&wakeup_fd) < 0) {
    int fd = lm_fd_above_stdio(eventfd(0, EFD_CLOEXEC));
    if (fd < 0) return lm_fail_cannot(LM_E_IO, "create an event descriptor", errno);
    atomic_store(&wakeup_fd, fd);
  }
  atomic_store(&quit, false);
  NEED(lm_thread_start(NULL, "lm-sigterm", &thread, sigterm_serve, NULL));
  take_signal();
  installed = true;
  return LM_OK;
}

lm_status lm_sigterm_watch(void) {
  LM_LOCKED(&lock);
  lm_status status = users == 0 ? install() : LM_OK;
  if (status == LM_OK) users++;
  return status;
}

void lm_sigterm_unwatch(void) {
  LM_LOCKED(&lock);
  if (--users == 0 && installed) {
    installed = false;
    if (!atomic_load(&deferred)) default_again();
    atomic_store(&quit, true);
    if (atomic_load(&asked)) {
      pthread_detach(thread); /* the thread is about to end the process */
    } else {
      lm_wakeup_fd_signal(atomic_load(&wakeup_fd));
      pthread_join(thread, NULL);
      if (atomic_load(&asked)) end_process(); /* a SIGTERM that the thread may have missed */
    }
  }
}

void lm_sigterm_defer(void) {
  struct sigaction now;
  LM_LOCKED(&lock);
  if (!atomic_load(&deferred) && sigaction(SIGTERM, NULL, &now) == 0) {
    if (!is_ours(&now)) foreign = now;
    take_signal();
    atomic_store(&deferred, true);
  }
}

bool lm_sigterm_came(void) { return atomic_load_explicit(&came, memory_order_relaxed); }
