/* Runs a Lua state on its own thread, for lm.mp. The thread runs a chunk with signals blocked, and reports through the
 * connection it was given, which its state closes last. */
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "bind/mp/handles.h"
#include "distributed/group/backend.h"
#include "io/background_write.h"

/* ---- interrupting: as luajit does for Ctrl-C, a signal sets a hook that raises. SIGURG is ignored by default, so a
 * stray one does no harm. The handler has its own stack: oneDNN's products use the stack pointer for other data, so a
 * signal's frame would be written to the heap. */
enum { INTERRUPT = SIGURG, HANDLER_STACK = 64 << 10 };

struct lm_lua_thread {
  pthread_t id;
  int nice;
  int rc; /* the thread's reference and its owner's; guarded by `lock`, like ended and next */
  bool ended;
  bool is_abandoned;          /* its owner waited in vain for its end */
  bool is_left;               /* it runs in the process that forked this one, which has only its memory */
  struct lm_lua_thread *next; /* in the list of running threads */
  lm_handle *connection;      /* NULL once its state owns it */
  _Alignas(16) char stack[HANDLER_STACK];
  char error[512]; /* the chunk's error, valid once it has ended; "" for none */
  char chunk[];
};

LM_MUTEX(lock);
static pthread_cond_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static lm_lua_thread *running;

static _Thread_local lua_State *_Atomic interruptible;
static _Atomic int interrupts; /* number of signals handled */

static _Thread_local const char *_Atomic reason;
static _Thread_local _Atomic bool insists; /* true after a second Ctrl-C, since a pcall may have caught the first */
static _Thread_local double last_sigint;   /* in seconds; 0: none since handle_interrupts was called */
static _Thread_local int outer_levels;     /* levels of the stack then */

/* Raises an error; if it insists, at every instruction until the function that called handle_interrupts runs. */
static void raise_interrupted(lua_State *L, lua_Debug *ar) {
  const bool again = insists && (L != interruptible || lua_getstack(L, outer_levels, ar));
  if (!again) lua_sethook(L, NULL, 0, 0);
  if (again || !insists) luaL_error(L, "%s", reason);
}

static void on_interrupt(int signal) {
  lua_State *L = interruptible;
  const double now = lm_seconds();
  insists = signal == SIGINT && last_sigint > 0 && now - last_sigint < 3;
  last_sigint = now;
  reason = signal == SIGINT ? "interrupted!" : "the thread was asked to end"; /* as luajit words it */
  if (L) lua_sethook(L, raise_interrupted, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  atomic_fetch_add(&interrupts, 1);
}

/* handle_interrupts(raises): sets how SIGINT acts on this thread, however often it comes: it raises an error in this
 * state, a second within 3 s one that no pcall above the caller stops; or it only ends a system call. */
LM_FUNCTION(handle_interrupts, (flag, raises)) {
  static _Alignas(16) char memory[HANDLER_STACK];
  lua_Debug level;
  for (outer_levels = 0; lua_getstack(L, outer_levels, &level);) outer_levels++;
  insists = false;
  last_sigint = 0;
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_ONSTACK | (raises ? SA_RESTART : 0)};
  sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = sizeof memory}, NULL);
  interruptible = raises ? L : NULL;
  sigaction(SIGINT, &action, NULL);
  return 0;
}

/* Interrupts t unless it is this thread. The lock must be held: then a thread that has not ended has a valid id. The
 * handler is the process's for this time alone, and not in one that has another. */
static void interrupt(const lm_lua_thread *t) {
  enum { TRIES = 100 }; /* a thread that blocks the signal is about to end */
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_ONSTACK}, before;
  if (t->ended || pthread_equal(t->id, pthread_self())) return;
  if (sigaction(INTERRUPT, NULL, &before) != 0 || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN))
    return;
  int handled = interrupts;
  sigaction(INTERRUPT, &action, NULL);
  pthread_kill(t->id, INTERRUPT);
  for (int i = 0; i < TRIES && interrupts == handled; i++) usleep(100);
  sigaction(INTERRUPT, &before, NULL);
}

/* Interrupts all threads and waits for their end, at most `seconds`; for abandoned ones a moment. */
static void end_threads(double seconds) {
  double deadline = lm_seconds() + seconds;
  pthread_mutex_lock(&lock);
  while (running && lm_seconds() < deadline) {
    bool others = false;
    for (const lm_lua_thread *t = running; t; t = t->next) {
      interrupt(t);
      others = others || !(t->is_abandoned || pthread_equal(t->id, pthread_self()));
    }
    lm_cond_wait_until(&ends, &lock, lm_seconds() + 0.05);
    if (!others) break;
  }
  pthread_mutex_unlock(&lock);
}

/* ---- the end of the process. exit() begins with the destructors of the main thread's thread_local variables. An
 * atexit handler runs too late: objects that libraries made at first use in our threads are destroyed before it. */
extern int __cxa_thread_atexit_impl(void (*destroy)(void *), void *object, void *dso) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static void *leave_late(void *code) {
  nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
  _exit((int)(intptr_t)code);
}

/* Ends the process without destructors. Flushes files, unless a thread holds one locked for 2 s. failed: unless NULL,
 * exit code 0 becomes 1. */
static void leave_process(int code, void *failed) {
  pthread_t id;
  if (failed && code == 0) code = EXIT_FAILURE;
  lm_group_shutdown();
  pthread_create(&id, NULL, leave_late, (void *)(intptr_t)code);
  fflush(NULL);
  _exit(code);
}

/* Ends our threads before exit() destroys objects they use. If some do not end (deep in C, catching the interrupt, in a
 * backward pass whose hook exits), leave_process, which on_exit runs first, skips all destructors. */
static void finish_threads(void *unused) {
  (void)unused;
  end_threads(2);
  bool saved = lm_background_writes_finish();
  if (!saved || lm_busy_threads(0) > 0) on_exit(leave_process, saved ? NULL : &running);
}

void lm_lua_threads_at_exit(void) {
  static _Thread_local bool done;
  if (done || gettid() != getpid()) return;
  done = true;
  if (__cxa_thread_atexit_impl) __cxa_thread_atexit_impl(finish_threads, NULL, &__dso_handle);
}

static void release_thread(lm_lua_thread *t) { /* called with the lock held */
  if (--t->rc == 0) lm_free(t);
}

/* Marks all other threads as ended, in a child of a fork, which has none of them. */
static void forget_threads(void) {
  lm_cond_init(&ends);
  for (lm_lua_thread *t = running, *next; t; t = next) {
    next = t->next;
    if (pthread_equal(t->id, pthread_self())) continue;
    LM_UNLINK(running, t);
    t->ended = t->is_left = true;
    lm_busy_threads(-1);
    release_thread(t);
  }
}

static void prepare_lua_threads(void) {
  lm_cond_init(&ends);
  pthread_atfork(NULL, NULL, forget_threads);
}

static void allow_interrupts(bool allow) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, INTERRUPT);
  pthread_sigmask(allow ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

/* ---- the thread */

static int run_chunk(lua_State *L) {
  lm_lua_thread *t = lua_touserdata(L, 1);
  *lm_handle_slot(L) = t->connection; /* the state's first userdata, so the last to be finalized */
  t->connection = NULL;
  luaL_openlibs(L);
  lua_setglobal(L, "LM_CHANNEL"); /* the chunk removes it */
  if (luaL_loadbuffer(L, t->chunk, strlen(t->chunk), "=luminary.mp") != 0) return lua_error(L);
  interruptible = L; /* allocated before a handler reads it */
  allow_interrupts(true);
  lua_call(L, 0, 0);
  return 0;
}

static void *thread_main(void *arg) {
  lm_lua_thread *t = arg;
  lm_script_thread_begin();
  lm_truncation_begin();
  nice(t->nice); /* Linux changes this thread alone, and never refuses to lower a priority */
  lua_State *L = luaL_newstate();
  stack_t stack = {.ss_sp = t->stack, .ss_size = HANDLER_STACK};
  sigaltstack(&stack, NULL);
  if (!L) {
    snprintf(t->error, sizeof t->error, "there is no memory for another Lua state");
  } else {
    if (lua_cpcall(L, run_chunk, t) != 0) {
      const char *message = lua_tostring(L, -1);
      if (!message) lua_pushliteral(L, "an error that is no text");
      lm_write_bytes(t->error, sizeof t->error, lua_tostring(L, -1), lua_objlen(L, -1));
    }
    allow_interrupts(false);
    interruptible = NULL;
    lua_sethook(L, NULL, 0, 0);
    lua_close(L);
  }
  stack = (stack_t){.ss_flags = SS_DISABLE};
  sigaltstack(&stack, NULL);
  lm_streams_disown();
  lm_handle_free(t->connection);
  pthread_mutex_lock(&lock);
  t->ended = true;
  lm_busy_threads(-1);
  LM_UNLINK(running, t);
  pthread_cond_broadcast(&ends);
  release_thread(t);
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- calls of the thread's owner */

lm_status lm_lua_thread_start(const char *chunk, int nice, lm_handle *connection, lm_lua_thread **out) {
  enum { STACK = 16 << 20 }; /* bytes of address space */
  pthread_once(&once, prepare_lua_threads);
  lm_lua_thread *t = lm_calloc(1, sizeof *t + strlen(chunk) + 1);
  if (!t) {
    lm_handle_free(connection);
    return LM_E_OOM;
  }
  strcpy(t->chunk, chunk);
  t->connection = connection;
  t->nice = nice;
  t->rc = 2;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK);
  pthread_mutex_lock(&lock);
  lm_status status = lm_thread_start(&attributes, "lm-lua", &t->id, thread_main, t);
  if (status == LM_OK) {
    t->next = running;
    running = t;
    lm_busy_threads(1);
    *out = t;
  }
  pthread_mutex_unlock(&lock);
  pthread_attr_destroy(&attributes);
  if (status != LM_OK) {
    lm_handle_free(connection);
    lm_free(t);
  }
  return status;
}

void lm_lua_thread_interrupt(lm_lua_thread *t) {
  pthread_mutex_lock(&lock);
  interrupt(t);
  pthread_mutex_unlock(&lock);
}

bool lm_lua_thread_wait(lm_lua_thread *t, double seconds) {
  double deadline = lm_seconds() + seconds;
  pthread_mutex_lock(&lock);
  while (!t->ended && lm_cond_wait_until(&ends, &lock, deadline)) continue;
  bool ended = t->ended;
  pthread_mutex_unlock(&lock);
  return ended;
}

const char *lm_lua_thread_error(const lm_lua_thread *t) { return t->error; }

void lm_lua_thread_forget(lm_lua_thread *t) {
  if (!t) return;
  pthread_mutex_lock(&lock);
  bool ended = t->ended;
  pthread_t id = t->id;
  t->is_abandoned = !ended;
  pthread_mutex_unlock(&lock);
  if (!ended) {
    pthread_detach(id);
  } else if (!t->is_left) {
    pthread_join(id, NULL); /* returns at once */
  }
  pthread_mutex_lock(&lock);
  release_thread(t);
  pthread_mutex_unlock(&lock);
}
