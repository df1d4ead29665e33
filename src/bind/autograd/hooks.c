/* Registers hooks on gradients, keeps fields of Lua with tensors, and runs functions that backward computes again
 * (checkpoint). */
#include <stdio.h>

#include "bind/autograd/callback.h"

typedef struct hook_call {
  lm_callback *c;
  lm_tensor *grad, **replacement;
} hook_call;

static int run_hook(lua_State *L, lm_lua *s, void *arg) {
  const hook_call *p = arg;
  s->in_backward = NULL;
  if (!lm_callback_push(L, p->c)) return 0;                            /* the hook has been removed */
  lm_tensor_handle *handle = p->grad ? lm_tensor_handle_new(L) : NULL; /* may raise */
  if (handle) lm_tensor_handle_fill(s, handle, lm_retain(p->grad));
  lua_call(L, p->grad ? 1 : 0, 1);
  if (lua_isnil(L, -1)) return 0;
  *p->replacement = lm_retain(lm_need_tensor(L, lua_gettop(L), "hook", "result"));
  return 0;
}

static lm_status call_hook(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  lm_callback *c = ctx;
  lm_retain(grad); /* grad may be .grad itself, which a finalizer may set to nil */
  lm_status status = lm_call_lua(c->owner, run_hook, &(hook_call){c, grad, replacement});
  lm_release(grad);
  return status;
}

/* Pushes the table of the handle at 1, which has hooks by their addresses and fields by name. */
static void push_own_table(lua_State *L, lm_tensor_handle *b) {
  if (!b->hooked) {
    lua_newtable(L);
    lua_setfenv(L, 1);
    b->hooked = true;
  }
  lua_getfenv(L, 1);
}

/* Returns the value that set_field(x, name, value) keeps with the handle x; nil without one, or if x is no tensor. */
LM_FUNCTION(field, (any, x), (any, name)) {
  const lm_tensor_handle *b = lm_to_tensor_handle(L, LM_STATE(L), 1);
  if (!b || !b->hooked) return 0;
  lua_getfenv(L, 1);
  lua_insert(L, 2);
  lua_rawget(L, 2);
  return 1;
}

/* Keeps the value with the handle x, until that is collected. */
LM_FUNCTION(set_field, (tensor, x), (any, name), (any, value)) {
  push_own_table(L, lm_to_tensor_handle(L, LM_STATE(L), 1));
  lua_insert(L, 2);
  lua_rawset(L, 2);
  return 0;
}

/* Returns a callback of the function at 2, which belongs to the handle at 1. `fn` and `name` are for messages. */
static lm_callback *callback_of_handle(lua_State *L, lm_lua *s, const char *fn, const char *name) {
  lm_callbacks_drain(L, s->callbacks);
  lm_need_tensor(L, 1, fn, "x");
  if (lua_type(L, 2) != LUA_TFUNCTION) lm_raise_arg(L, 2, fn, name, "a function");
  push_own_table(L, lm_to_tensor_handle(L, s, 1));
  lm_callback *c = lm_callback_new(s->callbacks, sizeof *c);
  if (!c) lm_raise(L, LM_E_STATE);
  lm_callback_keep_here(L, c, 2);
  if (lm_to_tensor(L, s, 1)) return c;
  lm_callback_release(c); /* a finalizer has run */
  lm_raise_arg(L, 1, fn, "x", "a live tensor");
  return NULL;
}

/* Returns an id and the callback: f gets x's gradient or, with accumulate, x once .grad is set. */
LM_FUNCTION(_register_hook, (any, x), (any, f), (flag, accumulate)) {
  lm_lua *s = LM_STATE(L);
  const char *fn = accumulate ? "register_post_accumulate_grad_hook" : "register_hook";
  lm_callback *c = callback_of_handle(L, s, fn, "hook");
  lm_tensor *t = lm_to_tensor(L, s, 1);
  int64_t id = 0;
  lm_hook hook = {call_hook, c, lm_callback_release};
  /* a failed registration has released the callback */
  lm_need(L, accumulate ? lm_register_accumulate_hook(t, hook, NULL, &id) : lm_register_hook(t, hook, &id));
  lua_pushnumber(L, (double)id);
  lua_pushlightuserdata(L, c);
  return 2;
}

/* _remove_hook(x, id, callback): removes the hook for which _register_hook returned these */
LM_FUNCTION(_remove_hook) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, 1);
  if (!b) return 0;
  if (b->t) lm_remove_hook(b->t, (int64_t)lua_tonumber(L, 2));
  if (b->hooked && lua_type(L, 3) == LUA_TLIGHTUSERDATA) {
    lua_getfenv(L, 1);
    lua_pushvalue(L, 3);
    lua_pushnil(L);
    lua_rawset(L, -3);
  }
  return 0;
}

/* Nodes save no reference to x's memory; f() returns it again, with equal values as long as from's version stays. */
LM_FUNCTION(set_source, (any, x), (any, f), (any, from)) {
  lm_lua *s = LM_STATE(L);
  lm_callback *c = callback_of_handle(L, s, "set_source", "f");
  lm_tensor *origin = lm_to_tensor(L, s, from);
  if (!origin) {
    lm_callback_release(c);
    return lm_raise_arg(L, from, "set_source", "from", "a tensor");
  }
  lm_source source = {.fetch = call_hook, .ctx = c, .release = lm_callback_release};
  lm_need(L, lm_tensor_set_source(lm_to_tensor(L, s, x), origin, source));
  return 0;
}

/* Backward runs the node that made x, whose inputs are leaves, before all nodes that exist now. */
LM_FUNCTION(run_next, (tensor, x)) {
  lm_run_next(x);
  return 0;
}

/* checkpoint(f, again, ...) -> f(...), recorded without saved tensors; backward calls again() to recompute it. */
LM_FUNCTION(checkpoint) {
  lm_lua *s = LM_STATE(L);
  if (lua_type(L, 1) != LUA_TFUNCTION || lua_type(L, 2) != LUA_TFUNCTION) {
    int wrong = lua_type(L, 1) == LUA_TFUNCTION ? 2 : 1;
    return lm_raise_arg(L, wrong, "checkpoint", wrong == 1 ? "f" : "again", "a function");
  }
  luaL_checkstack(L, 10, "checkpoint");
  lm_callbacks_drain(L, s->callbacks);
  lm_callback *c = lm_callback_new(s->callbacks, sizeof *c);
  if (!c) return lm_raise(L, s->callbacks ? LM_E_OOM : LM_E_STATE);
  int top = lua_gettop(L);
  lm_callback_keep(L, c, 2);
  lm_push_site(L);
  char where[96];
  snprintf(where, sizeof where, "%s", lua_tostring(L, -1));
  lua_settop(L, top);
  lua_remove(L, 2);
  lm_recompute *r;
  lm_need(L, lm_recompute_begin((lm_hook){call_hook, c, lm_callback_release}, where, &r));
  int failed = lm_pcall(L, top - 2, LUA_MULTRET);
  lm_recompute_end(r);
  return failed ? lua_error(L) : lua_gettop(L);
}
