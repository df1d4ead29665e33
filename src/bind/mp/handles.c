/* Binds queues, connections, locks and semaphores for lua/luminary/mp. A signal ends a wait early, so that its Lua
 * handler can run; the caller then calls again.
 *
 *   mp_queue          0: without a limit
 *   mp_pipe           the two ends. threads: messages pass by reference, within this process
 *   mp_listen         an end that another program can connect to, until it is closed (lm_listener_new)
 *   mp_stop_reading   makes a connection's descriptor readable for good
 *   mp_put            puts a message into a queue or a connection; returns whether there was room within `seconds`, and
 *                     whether any message now waits in this process's memory. direct: the message must not
 *   mp_get            text, tensors, handles; false if nothing came within `seconds`, nil at a connection's end.
 *                     claims: an int64 tensor; its element i becomes a queue's message's number before that leaves it
 *   mp_poll           true if there is a message to get, or the end was reached
 *   mp_queue_size     the number of messages, the capacity, the number of messages waiting in this process
 *   mp_queue_has      true if that message, claimed by a worker that died, is still in the queue
 *   mp_queue_flush    true if no message waits in this process any more
 *   mp_queue_join     true if all messages are done (Queue:task_done)
 *   mp_acquire        nil at a timeout, else 1; 2 if the last holder ended without release. Ignores signals
 *   mp_held           the number of times it is held through this handle
 *   mp_permit         as mp_acquire, but signals end it, and it may end early
 *   mp_wait_changed   true if a permit was released since mp_changed
 */
#include "bind/mp/handles.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "mp/lock.h"
#include "mp/queue.h"
#include "mp/semaphore.h"

/* ---- handles */

LM_HELD_TYPE(handle, lm_handle, lm_handle_free, "luminary.mp.handle", NULL, NULL, NULL)

lm_handle *lm_to_handle(lua_State *L, int i) {
  lm_handle **h = lm_to_object(L, i, &handle_type);
  return h ? *h : NULL;
}

/* Returns false if the next descriptors would have the last NEEDED numbers that the process may use. */
static bool has_descriptors(void) {
  enum { FEW = 8, NEEDED = 4 };
  struct rlimit limit = {0};
  int any = lm_fd_above_stdio(open("/", O_PATH | O_CLOEXEC)), high = any;
  if (any >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < INT_MAX)
    high = lm_fd_copy(any, (int)limit.rlim_cur - FEW);
  if (high >= 0 && high != any) close(high);
  if (any >= 0) close(any);
  return high >= 0 && (high == any || high <= (int)limit.rlim_cur - NEEDED);
}

lm_handle **lm_handle_slot(lua_State *L) {
  if (!has_descriptors()) lua_gc(L, LUA_GCCOLLECT, 0);
  return lm_object_new(L, &handle_type);
}

#define HANDLE(name, allows)                                                                       \
  LM_READER(lm_handle *, name) {                                                                   \
    lm_handle *h = lm_to_handle(L, i);                                                             \
    if (!h || !(allows)) lm_raise_arg(L, i, "lm.mp", "the handle", "open, and of the right kind"); \
    return h;                                                                                      \
  }
HANDLE(any_handle, true)
HANDLE(queue, h->kind == LM_QUEUE)
HANDLE(connection, h->kind == LM_CONNECTION)
HANDLE(lock, h->kind == LM_LOCK)
HANDLE(semaphore, h->kind == LM_SEMAPHORE)

LM_FUNCTION(mp_queue, (number, capacity)) {
  return lm_return(L, lm_queue_new((uint64_t)capacity, lm_handle_slot(L)), 1);
}

LM_FUNCTION(mp_pipe, (flag, threads)) {
  lm_handle_kind kind = threads ? LM_THREAD_CONNECTION : LM_CONNECTION;
  lm_handle *ends[2], **a = lm_handle_slot(L), **b = lm_handle_slot(L);
  lm_need(L, lm_connection_pair(kind, ends));
  *a = ends[0];
  *b = ends[1];
  return 2;
}

LM_FUNCTION(mp_listen, (text, path)) { return lm_return(L, lm_listener_new(path, lm_handle_slot(L)), 1); }

LM_FUNCTION(mp_fileno, (connection, h)) { return lm_return_int(L, h->fd[0]); }

LM_FUNCTION(mp_stop_reading, (connection, h)) { return lm_return_int(L, shutdown(h->fd[0], SHUT_RD)); }

LM_FUNCTION(mp_lock) { return lm_return(L, lm_lock_new(lm_handle_slot(L)), 1); }

LM_FUNCTION(mp_close_handle) {
  void *h = lm_to_object(L, 1, &handle_type);
  if (h) handle_type.close(h);
  return 0;
}

LM_FUNCTION(mp_is_handle) { return lm_return_bool(L, lm_to_object(L, 1, &handle_type) != NULL); }

LM_FUNCTION(mp_is_open) { return lm_return_bool(L, lm_to_handle(L, 1) != NULL); }

/* ---- messages */

/* Reads text, list of tensors and list of handles (nil: none) at i to i + 2, borrowed. Free both lists, after errors
 * too. */
static lm_status read_content(lua_State *L, const lm_lua *s, int i, const char *fn, lm_mp_message *out) {
  const char *text;
  *out = (lm_mp_message){0};
  NEED(lm_read_string(L, s, i, fn, "text", &text, &out->n));
  out->text = (char *)text;
  NEED(lm_read_list(L, s, i + 1, fn, "tensors", false, &out->ntensors, &out->tensors));
  if (lua_isnil(L, i + 2)) return LM_OK;
  if (!lua_istable(L, i + 2)) return lm_fail_value(fn, "handles", "a list", lm_describe_arg(L, s, i + 2));
  out->nhandles = (int)lua_objlen(L, i + 2);
  out->handles = lm_calloc((size_t)out->nhandles, sizeof *out->handles);
  if (!out->handles) return LM_E_OOM;
  for (int k = 0; k < out->nhandles; k++) {
    lua_rawgeti(L, i + 2, k + 1);
    out->handles[k] = lm_to_handle(L, -1);
    lua_pop(L, 1);
    if (!out->handles[k]) return lm_fail(LM_E_STATE, "%s: handle %d was closed", fn, k + 1);
  }
  return LM_OK;
}

/* Pushes the message's text, list of tensors and list of handles, and frees the message; returns 3. */
static int push_message(lua_State *L, lm_lua *s, lm_mp_message **held) {
  lm_mp_message *p = *held;
  const lm_segment *last = NULL;
  lua_pushlstring(L, p->text, p->n);
  lua_createtable(L, p->ntensors, 0);
  for (int i = 0; i < p->ntensors; i++) {
    lm_tensor_handle *b = lm_tensor_handle_new(L);
    const lm_segment *segment = lm_segment_of(p->tensors[i]);
    if (segment && segment != last) s->fresh += LM_GC_STEP_DESCRIPTOR;
    last = segment;
    lm_tensor_handle_fill(s, b, p->tensors[i]);
    lm_gc_step_count(s, p->tensors[i]);
    p->tensors[i] = NULL;
    lua_rawseti(L, -2, i + 1);
  }
  lua_createtable(L, p->nhandles, 0);
  for (int i = 0; i < p->nhandles; i++) {
    *lm_handle_slot(L) = p->handles[i];
    p->handles[i] = NULL;
    lua_rawseti(L, -2, i + 1);
  }
  lm_mp_message_free(p);
  *held = NULL;
  return 3;
}

/* ---- queues and connections */

typedef struct packing {
  lm_handle_kind kind;
  lm_packed_message *packed;
} packing;

static lm_status pack_message(lua_State *L, lm_lua *s, void *arg) {
  packing *p = arg;
  lm_mp_message content;
  lm_status status = read_content(L, s, 2, "mp_put", &content);
  if (status == LM_OK) status = lm_packed_message_new(p->kind, &content, &p->packed);
  lm_free(content.tensors);
  lm_free(content.handles);
  return status;
}

LM_FUNCTION(mp_put, (any_handle, h), (any, text), (any, tensors), (any, handles), (number, seconds), (flag, direct)) {
  bool sent = false;
  packing p = {.kind = h->kind};
  lm_status status;
  TRY(lm_retry_after_gc(L, LM_STATE(L), pack_message, &p));
  if (h->kind == LM_QUEUE) {
    TRY(lm_queue_put(h, p.packed, direct, seconds, &sent));
    if (sent) p.packed = NULL;
  } else {
    TRY(lm_connection_put(h, p.packed, seconds, &sent));
  }
done:
  lm_packed_message_free(p.packed);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushboolean(L, sent);
  lua_pushboolean(L, h->backlog && lm_queue_backlog(h, 0) > 0);
  return 2;
}

LM_HELD_TYPE(message, lm_mp_message, lm_mp_message_free, "luminary.message", NULL, NULL, NULL)

typedef struct getting {
  lm_handle *h;
  double seconds;
  int64_t i;
  lm_mp_message **held;
  bool closed;
} getting;

static lm_status take_message(lua_State *L, lm_lua *s, void *arg) {
  getting *g = arg;
  lm_tensor *claims = NULL;
  _Atomic int64_t *claim = NULL;
  if (g->h->kind != LM_QUEUE) return lm_connection_get(g->h, g->seconds, g->held, &g->closed);
  if (g->i > 0) {
    NEED(lm_read_plain(L, s, 3, "mp_get", "claims", LM_I64, &claims));
    if (g->i > claims->numel) return lm_fail_int("mp_get", "i", "an index of claims", g->i);
    claim = (_Atomic int64_t *)claims->data + (g->i - 1);
  }
  return lm_queue_get(g->h, g->seconds, claim, g->held);
}

LM_FUNCTION(mp_get, (any_handle, h), (number, seconds), (any, claims), (int, i, 0)) {
  lm_lua *s = LM_STATE(L);
  getting g = {.h = h, .seconds = seconds, .i = i};
  lm_gc_step_if_due(L, s);
  g.held = lm_object_new(L, &message_type);
  lm_need(L, lm_retry_after_gc(L, s, take_message, &g));
  if (*g.held) return push_message(L, s, g.held);
  if (g.closed) return 0;
  return lm_return_bool(L, 0);
}

LM_FUNCTION(mp_poll, (any_handle, h), (number, seconds)) {
  bool ready;
  lm_need(L, lm_channel_wait(h->fd[0], POLLIN, seconds, &ready));
  return lm_return_bool(L, ready);
}

LM_FUNCTION(mp_queue_size, (queue, h)) {
  lua_pushnumber(L, (double)lm_queue_size(h));
  lua_pushnumber(L, (double)lm_queue_capacity(h));
  lua_pushnumber(L, (double)lm_queue_backlog(h, 0));
  return 3;
}

LM_FUNCTION(mp_queue_has, (queue, h), (number, number)) {
  bool has;
  lm_need(L, lm_queue_has(h, (uint64_t)number, &has));
  return lm_return_bool(L, has);
}

LM_FUNCTION(mp_queue_flush, (queue, h), (number, seconds)) {
  return lm_return_bool(L, lm_queue_backlog(h, seconds) == 0);
}

LM_FUNCTION(mp_queue_done, (queue, h)) { return lm_return_as(L, "Queue:task_done", lm_queue_done(h), 0); }

LM_FUNCTION(mp_queue_join, (queue, h), (number, seconds)) {
  bool done;
  lm_need(L, lm_queue_wait_done(h, seconds, &done));
  return lm_return_bool(L, done);
}

/* ---- locks */

static int acquire(lua_State *L, const char *who, lm_handle *h, double seconds,
                   lm_status (*f)(lm_handle *h, double seconds, lm_acquire_result *out)) {
  lm_acquire_result got;
  lm_return_as(L, who, f(h, seconds, &got), 0);
  return got == LM_ACQUIRE_TIMEOUT ? 0 : lm_return_int(L, got);
}

LM_FUNCTION_AS(mp_acquire, "Lock:acquire", (lock, h), (number, seconds)) {
  return acquire(L, "Lock:acquire", h, seconds, lm_lock_acquire);
}

LM_FUNCTION(mp_release, (lock, h)) { return lm_return_as(L, "Lock:release", lm_lock_release(h), 0); }

LM_FUNCTION(mp_held, (lock, h)) { return lm_return_int(L, h->depth); }

/* ---- semaphores */

LM_FUNCTION(mp_semaphore, (number, permits)) {
  uint32_t n = permits >= 0 && permits <= UINT32_MAX ? (uint32_t)permits : UINT32_MAX;
  return lm_return(L, lm_semaphore_new(n, lm_handle_slot(L)), 1);
}

LM_FUNCTION_AS(mp_permit, "Semaphore:acquire", (semaphore, h), (number, seconds)) {
  return acquire(L, "Semaphore:acquire", h, seconds, lm_semaphore_acquire);
}

LM_FUNCTION(mp_permit_back, (semaphore, h), (flag, bounded)) {
  return lm_return_as(L, "BoundedSemaphore:release", lm_semaphore_release(h, bounded), 0);
}

LM_FUNCTION(mp_permits, (semaphore, h)) { return lm_return_number(L, lm_semaphore_value(h)); }

LM_FUNCTION(mp_changed, (semaphore, h)) { return lm_return_number(L, lm_semaphore_changed(h)); }

LM_FUNCTION(mp_wait_changed, (semaphore, h), (number, changed), (number, seconds)) {
  return lm_return_bool(L, lm_semaphore_wait(h, (uint32_t)changed, seconds));
}
