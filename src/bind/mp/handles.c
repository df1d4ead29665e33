/* Binds queues, connections, locks and semaphores for lua/luminary/mp. A signal ends a wait early, so that its Lua
 * handler can run; the caller then calls again.
 *
 *   mp_queue(capacity)            0: none
 *   mp_pipe([threads])            the two ends. threads: messages pass by reference, within this process
 *   mp_listen(path)               an end that another program can connect to, until it is closed (lm_listener_new)
 *   mp_fileno(h)                  the descriptor of a connection
 *   mp_lock()
 *   mp_is_handle(v)               mp_close_handle(h)            mp_is_open(h)
 *   mp_put(h, text, tensors, handles, seconds, direct)
 *       puts a message into a queue or a connection; returns whether there was room within `seconds`, and whether any
 *       message now waits in this process's memory. direct: the message must not
 *   mp_get(h, seconds [, claims, i])
 *       text, tensors, handles; false if nothing came within `seconds`, nil at a connection's end. claims: an int64
 *       tensor whose element i becomes the number of a queue's message before it leaves the queue
 *   mp_poll(h, seconds)           true if there is a message to get, or the end was reached
 *   mp_queue_size(h)              the number of messages, the capacity, the number of messages waiting in this process
 *   mp_queue_has(h, number)       true if that message, claimed by a worker that died, is still in the queue
 *   mp_queue_flush(h, seconds)    true if no message waits in this process any more
 *   mp_queue_done(h)              mp_queue_join(h, seconds)   true if all messages are done (Queue:task_done)
 *   mp_acquire(h, seconds)        nil at a timeout, else 1; 2 if the last holder ended without release. Ignores signals
 *   mp_release(h)                 mp_held(h)   the number of times it is held through this handle
 *   mp_semaphore(permits)         mp_permit(h, seconds)         as mp_acquire, but signals end it, and it may end early
 *   mp_permit_back(h, bounded)    mp_permits(h)                 the number of free permits
 *   mp_changed(h)                 mp_wait_changed(h, changed, seconds)   true if a permit was released since
 */
#include "bind/mp/handles.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "mp/lock.h"
#include "mp/queue.h"
#include "mp/semaphore.h"

/* ---- handles */

LM_HELD_TYPE(handle_type, lm_handle, lm_handle_free, "luminary.mp.handle", NULL, NULL);

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

static lm_handle *need_handle(lua_State *L, int i, lm_handle_kind kind) {
  lm_handle *h = lm_to_handle(L, i);
  if (!h || (kind && h->kind != kind)) lm_raise_arg(L, i, "lm.mp", "the handle", "open, and of the right kind");
  return h;
}

LM_FUNCTION(mp_queue) {
  double capacity = lm_need_number(L, 1, "mp_queue", "capacity");
  return lm_return(L, lm_queue_new((uint64_t)capacity, lm_handle_slot(L)), 1);
}

LM_FUNCTION(mp_pipe) {
  lm_handle_kind kind = lua_toboolean(L, 1) ? LM_THREAD_CONNECTION : LM_CONNECTION;
  lm_handle *ends[2], **a = lm_handle_slot(L), **b = lm_handle_slot(L);
  lm_need(L, lm_connection_pair(kind, ends));
  *a = ends[0];
  *b = ends[1];
  return 2;
}

LM_FUNCTION(mp_listen) {
  const char *path = lm_need_text(L, 1, "mp_listen", "path");
  return lm_return(L, lm_listener_new(path, lm_handle_slot(L)), 1);
}

LM_FUNCTION(mp_fileno) { return lm_return_int(L, need_handle(L, 1, LM_CONNECTION)->fd[0]); }

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

LM_FUNCTION(mp_put) {
  lm_lua *s = LM_STATE(L);
  lm_handle *h = need_handle(L, 1, 0);
  double seconds = lm_need_number(L, 5, "mp_put", "seconds");
  bool direct = lua_toboolean(L, 6), sent = false;
  packing p = {.kind = h->kind};
  lm_status status;
  lua_settop(L, 6);
  TRY(lm_retry_after_gc(L, s, pack_message, &p));
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

LM_HELD_TYPE(message_type, lm_mp_message, lm_mp_message_free, "luminary.message", NULL, NULL);

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

LM_FUNCTION(mp_get) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 4);
  getting g = {.h = need_handle(L, 1, 0)};
  LM_NEED_ARGS(L, 2, "mp_get", {"seconds", LM_ARG_F, &g.seconds}, {"claims", LM_ARG_OTHER, NULL},
               {"i", LM_ARG_I | LM_OR_NIL, &g.i});
  lm_gc_step_if_due(L, s);
  g.held = lm_object_new(L, &message_type);
  lm_need(L, lm_retry_after_gc(L, s, take_message, &g));
  if (*g.held) return push_message(L, s, g.held);
  if (g.closed) return 0;
  return lm_return_bool(L, 0);
}

LM_FUNCTION(mp_poll) {
  lm_handle *h = need_handle(L, 1, 0);
  bool ready;
  lm_need(L, lm_channel_wait(h->fd[0], POLLIN, lm_need_number(L, 2, "mp_poll", "seconds"), &ready));
  return lm_return_bool(L, ready);
}

LM_FUNCTION(mp_queue_size) {
  lm_handle *h = need_handle(L, 1, LM_QUEUE);
  lua_pushnumber(L, (double)lm_queue_size(h));
  lua_pushnumber(L, (double)lm_queue_capacity(h));
  lua_pushnumber(L, (double)lm_queue_backlog(h, 0));
  return 3;
}

LM_FUNCTION(mp_queue_has) {
  lm_handle *h = need_handle(L, 1, LM_QUEUE);
  bool has;
  lm_need(L, lm_queue_has(h, (uint64_t)lm_need_number(L, 2, "mp_queue_has", "number"), &has));
  return lm_return_bool(L, has);
}

LM_FUNCTION(mp_queue_flush) {
  lm_handle *h = need_handle(L, 1, LM_QUEUE);
  return lm_return_bool(L, lm_queue_backlog(h, lm_need_number(L, 2, "mp_queue_flush", "seconds")) == 0);
}

LM_FUNCTION(mp_queue_done) { return lm_return_as(L, "Queue:task_done", lm_queue_done(need_handle(L, 1, LM_QUEUE)), 0); }

LM_FUNCTION(mp_queue_join) {
  bool done;
  lm_need(L, lm_queue_wait_done(need_handle(L, 1, LM_QUEUE), lm_need_number(L, 2, "mp_queue_join", "seconds"), &done));
  return lm_return_bool(L, done);
}

/* ---- locks */

/* Acquires the lock or semaphore at 1, waiting for the seconds at 2. */
static int acquire(lua_State *L, const char *who, lm_handle_kind kind,
                   lm_status (*f)(lm_handle *h, double seconds, lm_acquire_result *out)) {
  lm_acquire_result got;
  lm_handle *h = need_handle(L, 1, kind);
  lm_return_as(L, who, f(h, lm_need_number(L, 2, who, "seconds"), &got), 0);
  return got == LM_ACQUIRE_TIMEOUT ? 0 : lm_return_int(L, got);
}

LM_FUNCTION(mp_acquire) { return acquire(L, "Lock:acquire", LM_LOCK, lm_lock_acquire); }

LM_FUNCTION(mp_release) { return lm_return_as(L, "Lock:release", lm_lock_release(need_handle(L, 1, LM_LOCK)), 0); }

LM_FUNCTION(mp_held) { return lm_return_int(L, need_handle(L, 1, LM_LOCK)->depth); }

/* ---- semaphores */

LM_FUNCTION(mp_semaphore) {
  double n = lm_need_number(L, 1, "mp_semaphore", "permits");
  uint32_t permits = n >= 0 && n <= UINT32_MAX ? (uint32_t)n : UINT32_MAX;
  return lm_return(L, lm_semaphore_new(permits, lm_handle_slot(L)), 1);
}

LM_FUNCTION(mp_permit) { return acquire(L, "Semaphore:acquire", LM_SEMAPHORE, lm_semaphore_acquire); }

LM_FUNCTION(mp_permit_back) {
  lm_handle *h = need_handle(L, 1, LM_SEMAPHORE);
  return lm_return_as(L, "BoundedSemaphore:release", lm_semaphore_release(h, lua_toboolean(L, 2)), 0);
}

LM_FUNCTION(mp_permits) { return lm_return_number(L, lm_semaphore_value(need_handle(L, 1, LM_SEMAPHORE))); }

LM_FUNCTION(mp_changed) { return lm_return_number(L, lm_semaphore_changed(need_handle(L, 1, LM_SEMAPHORE))); }

LM_FUNCTION(mp_wait_changed) {
  lm_handle *h = need_handle(L, 1, LM_SEMAPHORE);
  return lm_return_bool(L, lm_semaphore_wait(h, (uint32_t)lm_need_number(L, 2, "mp_wait_changed", "changed"),
                                             lm_need_number(L, 3, "mp_wait_changed", "seconds")));
}
