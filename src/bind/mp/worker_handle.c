/* Starts lm.mp's workers, which run a function in another Lua state, with a connection (handles.c) to each.
 *
 *   mp_process     worker, connection: a process by exec; its end of the connection is its descriptor 3. changes: list
 *                  of "NAME=value", or "NAME" to leave it out of the environment
 *   mp_thread      worker, connection: a thread whose state runs a chunk of Lua (lua_thread.c)
 *   mp_parent      a worker process's end of its connection, by its descriptor
 *   mp_wait        waits until a handle of a queue or connection in the list is readable, a worker in it has ended, or
 *                  a signal came
 *   mp_ended       nil while it runs; then its exit code, the signal that ended it or nil, and a thread's error
 *                  message, if raised outside the function
 *   mp_signal      sends a signal to a process; interrupts a thread, whatever the number
 *   mp_close       kills a process; interrupts a thread, and waits for its end
 *   mp_pid         a process's id; nil for a thread
 *   mp_share       moves a list of tensors to shared memory; if a tensor outside the list shares memory with one of
 *                  them, moves nothing and returns that one's number
 *   mp_unfit       the reason why x cannot be sent to another process; nil if it can
 *   mp_exported    lm_ipc_pending_count: messages whose tensors are exported, and imports to close
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "bind/mp/handles.h"
#include "mp/ipc.h"
#include "mp/process.h"
#include "mp/shared_tensors.h"

typedef struct worker {
  lm_process process;    /* pid 0: none */
  lm_lua_thread *thread; /* NULL: none */
} worker;

static void close_worker(worker *w, double timeout) {
  lm_process_close(&w->process);
  if (w->thread) {
    double deadline = lm_seconds() + timeout;
    while (!lm_lua_thread_wait(w->thread, 0.05) && lm_seconds() < deadline) lm_lua_thread_interrupt(w->thread);
    lm_lua_thread_forget(w->thread);
    w->thread = NULL;
  }
}

static void collect_worker(void *object) { close_worker(object, 2); }
static const lm_object_type worker_type = {"luminary.worker", sizeof(worker), collect_worker, "a worker", NULL, NULL};

LM_READER(worker *, worker) { return lm_need_object(L, i, &worker_type, "lm.mp"); }

LM_FUNCTION(mp_close, (worker, w), (number, seconds, 2)) {
  close_worker(w, seconds);
  return 0;
}

/* Pushes a worker and the slot of a connection to it, which is collected first. */
static worker *new_worker(lua_State *L, lm_handle ***connection) {
  worker *w = lm_object_new(L, &worker_type);
  w->process.pidfd = -1;
  *connection = lm_handle_slot(L);
  return w;
}

LM_FUNCTION(mp_process, (text, path), (any, arguments), (any, changes)) {
  int nargs, nchanges;
  char **env = NULL;
  lm_handle **connection, *ends[2] = {NULL, NULL};
  lm_status status;
  const char **argv = lm_need_strings(L, arguments, "mp_process", "argv", 1, &nargs),
             **set = lm_need_strings(L, changes, "mp_process", "env", 0, &nchanges);
  argv[0] = path;
  worker *w = new_worker(L, &connection);
  TRY(lm_process_env(nchanges, set, &env));
  TRY(lm_connection_pair(LM_CONNECTION, ends));
  *connection = ends[0];
  lm_process_plan plan = {.argv = argv,
                          .env = env,
                          .in = STDIN_FILENO,
                          .out = STDOUT_FILENO,
                          .err = STDERR_FILENO,
                          .extra = ends[1]->fd[0]};
  TRY(lm_process_start(&plan, &w->process));
done:
  lm_free(env);
  lm_handle_free(ends[1]);
  return lm_return(L, status, 2);
}

LM_FUNCTION(mp_thread, (text, chunk), (int, nice)) {
  lm_handle **connection, *ends[2];
  worker *w = new_worker(L, &connection);
  lm_need(L, lm_connection_pair(LM_THREAD_CONNECTION, ends));
  *connection = ends[0];
  return lm_return(L, lm_lua_thread_start(chunk, (int)nice, ends[1], &w->thread), 2);
}

LM_FUNCTION(mp_parent, (int, channel)) {
  int fd = (int)channel, kind = 0;
  socklen_t n = sizeof kind;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &n) != 0 || kind != SOCK_SEQPACKET) {
    return lm_raise_text(L, "mp_parent: descriptor %d is not a channel; only lm.mp starts workers", fd);
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC); /* child processes do not inherit it */
  return lm_return(L, lm_handle_make(LM_CONNECTION, &fd, NULL, lm_handle_slot(L)), 1);
}

/* ---- state of the workers */

static bool has_ended(const worker *w) {
  return w->process.pid > 0 ? w->process.ended : !w->thread || lm_lua_thread_wait(w->thread, 0);
}

/* Returns true if w has ended; else adds its descriptor to polls, or lowers *most (s) if its end cannot be polled. */
static bool poll_worker(worker *w, struct pollfd *polls, int *n, double *most) {
  if (w->process.pid > 0 && w->process.pidfd >= 0) {
    polls[(*n)++] = (struct pollfd){.fd = w->process.pidfd, .events = POLLIN};
    return false;
  }
  *most = 0.01;
  return (w->process.pid > 0 && lm_process_wait(&w->process, 0) != LM_OK) || has_ended(w);
}

LM_FUNCTION(mp_wait, (table, list), (number, seconds)) {
  double deadline = lm_seconds() + seconds;
  int count = (int)lua_objlen(L, list);
  struct pollfd *polls = lua_newuserdata(L, (size_t)(count + 1) * sizeof *polls);
  for (;;) {
    int n = 0;
    double most = 1, left = deadline - lm_seconds();
    for (int i = 1; i <= count; i++) {
      lua_rawgeti(L, 1, i);
      lm_handle *h = lm_to_handle(L, -1);
      worker *w = h ? NULL : lm_need_object(L, lua_gettop(L), &worker_type, "lm.mp");
      lua_pop(L, 1);
      if (h) polls[n++] = (struct pollfd){.fd = h->fd[0], .events = POLLIN};
      if (w && poll_worker(w, polls, &n, &most)) return 0;
    }
    if (left < 0) left = 0;
    int found = poll(polls, (nfds_t)n, (int)((left < most ? left : most) * 1000 + 0.999));
    if (found != 0 || left == 0) return 0; /* returns after a signal, too, so that its hook can raise */
  }
}

LM_FUNCTION(mp_ended, (worker, w)) {
  if (w->process.pid > 0) lm_need(L, lm_process_wait(&w->process, 0));
  if (!has_ended(w)) return 0;
  const char *error = w->thread ? lm_lua_thread_error(w->thread) : "";
  lua_pushinteger(L, w->thread ? *error != 0 : w->process.signal ? -1 : w->process.code);
  if (w->process.signal) {
    lua_pushinteger(L, w->process.signal);
  } else {
    lua_pushnil(L);
  }
  lua_pushstring(L, error);
  return 3;
}

LM_FUNCTION(mp_signal, (worker, w), (int, number)) {
  if (w->thread) lm_lua_thread_interrupt(w->thread);
  lm_process_signal(&w->process, (int)number);
  return 0;
}

LM_FUNCTION(mp_pid, (worker, w)) {
  if (w->process.pid <= 0) return 0;
  return lm_return_int(L, w->process.pid);
}

/* ---- shared memory */

static lm_status share_tensors(lua_State *L, lm_lua *s, void *which) {
  int n = 0;
  lm_tensor **tensors = NULL;
  lm_status status;
  TRY(lm_read_list(L, s, 1, "share_memory_", "tensors", false, &n, &tensors));
  bool was = true;
  for (int i = 0; i < n && was; i++) was = lm_is_shared(tensors[i]);
  if (was) goto done;
  status = lm_share(n, tensors, which);
  s->fresh += LM_GC_STEP_DESCRIPTOR;
done:
  lm_free(tensors);
  return status;
}

LM_FUNCTION(mp_share) {
  lm_lua *s = LM_STATE(L);
  int which = 0;
  lm_gc_step_if_due(L, s);
  lm_status status = lm_retry_after_gc(L, s, share_tensors, &which);
  if (status == LM_OK) return 0;
  if (status != LM_E_STATE) return lm_raise(L, lm_fail_in(status, "share_memory_"));
  return lm_return_int(L, which + 1);
}

LM_FUNCTION_AS(mp_is_shared, "is_shared", (tensor, x)) { return lm_return_bool(L, lm_is_shared(x)); }

LM_FUNCTION(mp_unfit, (tensor, x)) {
  if (lm_ipc_check(x) == LM_OK) return 0;
  return lm_return_text(L, lm_error());
}

LM_FUNCTION(mp_exported) { return lm_return_int(L, lm_ipc_pending_count()); }
