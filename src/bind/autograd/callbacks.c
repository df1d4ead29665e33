/* Calls Lua functions for the core: gradient hooks and the backward of lm.autograd.Function.
 *
 * The core holds a `lm_callback`; tables of this state hold the Lua function by the callback's
 * address. A hook's function belongs to its tensor's handle (in the userdata's environment, so that
 * a hook that captures its own tensor is collected with it); when the handle is collected while the
 * graph may still run the hook, the function moves to the table of strong references. When the core
 * releases a callback, on any thread, it is put in a list that this state's thread drains. */
#include <pthread.h>

#include "base/mapping_guard.h"
#include "base/mem.h"
#include "bind/autograd/callback.h"

struct lm_callbacks { /* may outlive the state, since each callback has a reference to it */
  pthread_mutex_t lock;
  int rc;
  lm_lua *s; /* NULL once the state has closed */
  pthread_t thread;
  lm_callback *gone;
  _Atomic bool any_gone;
};

/* ---- lifetimes */
lm_status lm_callbacks_new(lm_lua *s, lm_callbacks **out) {
  lm_callbacks *h = lm_calloc(1, sizeof *h);
  if (!h) return LM_E_OOM;
  pthread_mutex_init(&h->lock, NULL);
  h->rc = 1;
  h->s = s;
  h->thread = pthread_self();
  *out = h;
  return LM_OK;
}

static void release_list(lm_callbacks *h) { /* called with the lock held; unlocks it */
  bool last = --h->rc == 0;
  pthread_mutex_unlock(&h->lock);
  if (!last) return;
  pthread_mutex_destroy(&h->lock);
  lm_free(h);
}

void lm_callback_release(void *ctx) {
  lm_callback *c = ctx;
  lm_callbacks *h = c->owner;
  pthread_mutex_lock(&h->lock);
  if (h->s) {
    c->next = h->gone;
    h->gone = c;
    atomic_store(&h->any_gone, true);
    pthread_mutex_unlock(&h->lock);
    return;
  }
  lm_free(c);
  release_list(h);
}

static bool any_waiting(const lm_callbacks *h) { return h && atomic_load_explicit(&h->any_gone, memory_order_relaxed); }

static lm_callback *take_gone(lm_callbacks *h) {
  pthread_mutex_lock(&h->lock);
  lm_callback *c = h->gone;
  h->gone = NULL;
  atomic_store(&h->any_gone, false);
  pthread_mutex_unlock(&h->lock);
  return c;
}

static void free_callback(lm_callback *c) {
  lm_callbacks *h = c->owner;
  lm_free(c);
  pthread_mutex_lock(&h->lock);
  release_list(h);
}

void lm_callbacks_drain(lua_State *L, lm_callbacks *h) {
  if (!any_waiting(h) || !lua_checkstack(L, 8)) return;
  lm_reg_get(L, &lm_reg_weak);
  lm_reg_get(L, &lm_reg_strong);
  for (lm_callback *c = take_gone(h), *next; c; c = next) {
    next = c->next;
    for (int table = -2; table <= -1; table++) { /* existing keys: assigning nil allocates nothing */
      lua_pushlightuserdata(L, c);
      lua_rawget(L, table - 1);
      bool there = !lua_isnil(L, -1);
      lua_pop(L, 1);
      if (!there) continue;
      lua_pushlightuserdata(L, c);
      lua_pushnil(L);
      lua_rawset(L, table - 2);
    }
    free_callback(c);
  }
  lua_pop(L, 2);
}

void lm_callbacks_close(lm_callbacks *h) {
  if (!h) return;
  pthread_mutex_lock(&h->lock);
  h->s = NULL;
  pthread_mutex_unlock(&h->lock);
  for (lm_callback *c = take_gone(h), *next; c; c = next) {
    next = c->next;
    free_callback(c);
  }
  pthread_mutex_lock(&h->lock);
  release_list(h);
}

lm_callback *lm_callback_new(lm_callbacks *h, size_t bytes) {
  if (!h) {
    lm_fail(LM_E_STATE, "hooks: cannot register while the Lua state closes");
    return NULL;
  }
  lm_callback *c = lm_calloc(1, bytes);
  if (!c) return NULL;
  c->owner = h;
  pthread_mutex_lock(&h->lock);
  h->rc++;
  pthread_mutex_unlock(&h->lock);
  return c;
}

/* Sets the function at i in the table on top, by the callback's address, and pops the table. */
static void put_function(lua_State *L, lm_callback *c, int i) {
  lua_pushlightuserdata(L, c);
  lua_pushvalue(L, i);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void lm_callback_keep_here(lua_State *L, lm_callback *c, int i) {
  put_function(L, c, i);
  lm_reg_get(L, &lm_reg_weak);
  put_function(L, c, i);
}

void lm_callback_keep(lua_State *L, lm_callback *c, int i) {
  lm_reg_get(L, &lm_reg_strong);
  lm_callback_keep_here(L, c, i);
}

bool lm_callback_push(lua_State *L, const void *c) {
  lm_reg_get(L, &lm_reg_weak);
  lua_pushlightuserdata(L, (void *)c);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if (lua_type(L, -1) == LUA_TFUNCTION) return true;
  lua_pop(L, 1);
  return false;
}

void lm_hooks_orphan(lua_State *L, lm_lua *s) {
  lm_callbacks_drain(L, s->callbacks);
  lua_settop(L, 1);
  lm_reg_get(L, &lm_reg_weak);   /* 2 */
  lm_reg_get(L, &lm_reg_strong); /* 3 */
  lua_getfenv(L, 1);             /* 4 */
  lua_pushnil(L);
  while (lua_next(L, 4)) { /* 5: address, 6: function */
    lua_pushvalue(L, 5);
    lua_rawget(L, 2);
    bool alive = lua_rawequal(L, -1, 6); /* false: the core has released the callback */
    lua_pop(L, 1);
    if (alive) {
      lua_pushvalue(L, 5);
      lua_pushvalue(L, 6);
      lua_rawset(L, 3);
    }
    lua_settop(L, 5);
  }
}

/* ---- calling Lua from the core */

typedef struct protected_call {
  lm_lua_body body;
  void *arg;
} protected_call;

/* Runs the protected_call whose light userdata is at 1. Its upvalues are those of every closure. */
int lm_bind_protected(lua_State *L) {
  const protected_call *p = lua_touserdata(L, 1);
  return p->body(L, LM_STATE(L), p->arg);
}

lm_status lm_call_lua(lm_callbacks *h, lm_lua_body body, void *arg) {
  pthread_mutex_lock(&h->lock);
  lm_lua *s = h->s;
  bool here = s && pthread_equal(h->thread, pthread_self());
  pthread_mutex_unlock(&h->lock);
  if (!s) return LM_OK; /* the state has closed: no function is left to call */
  lua_State *L = here ? s->running : NULL;
  if (!L) return lm_fail(LM_E_STATE, "backward: cannot call a hook of another thread's Lua state");
  int top = lua_gettop(L); /* the binding has made room: doing so here could raise through the core */
  lm_callback *outer = s->in_backward;
  protected_call p = {body, arg};
  lm_reg_get(L, &lm_reg_protected);
  lua_pushlightuserdata(L, &p);
  int failed = lm_pcall(L, 1, 0);
  s->in_backward = outer;
  s->running = L; /* a nested backward may have set another coroutine */
  if (failed) {   /* the value is kept until the binding raises it again; the text is for other ranks */
    char text[1024] = "a Lua function raised";
    if (lua_type(L, -1) == LUA_TSTRING) lm_write_bytes(text, sizeof text, lua_tostring(L, -1), lua_objlen(L, -1));
    lm_fail(LM_E_LUA, "%s", text);
    lm_reg_get(L, &lm_reg_error);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 1);
    lua_settop(L, top);
    return LM_E_LUA;
  }
  lua_settop(L, top);
  return LM_OK;
}

lua_State *lm_running_begin(lua_State *L, lm_lua *s) {
  lua_State *before = s->running;
  s->running = L;
  if (s->callbacks) s->callbacks->thread = pthread_self();
  return before;
}

lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out) {
  if (!s->callbacks) return lm_fail(LM_E_STATE, "backward: cannot run while the Lua state closes");
  lua_State *before = lm_running_begin(L, s);
  lm_status status = lm_backward_by_script(a, out);
  s->running = before;
  if (status != LM_OK || (status = lm_truncation_check()) == LM_OK) return status;
  for (int i = 0; out && i < a->ninputs; i++) lm_release(out[i]);
  return status;
}
