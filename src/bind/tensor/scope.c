/* Drops tensors at the end of scopes: scope(f, ...) drops the handles that f made and neither returned (in tables, too)
 * nor kept; keep(x) spares a tensor, or the tensors in a table at any depth, and returns x. */
#include "bind/bind.h"

/* Moves the tensors in the value at index i out of every scope up to `until` (NULL: all) and into `until`.
 * `seen`: stack index of a table of tables already walked. */
static void spare_tensors(lua_State *L, lm_lua *s, int i, int seen, lm_scope *until) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  if (b) {
    bool was_in = b->pprev != NULL;
    lm_tensor_handle_unlink(b);
    if (was_in && until && b->t) lm_tensor_handle_link(until, b);
    return;
  }
  if (lua_type(L, i) != LUA_TTABLE) return;
  lua_pushvalue(L, i);
  lua_rawget(L, seen);
  bool known = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (known) return;
  lua_pushvalue(L, i);
  lua_pushboolean(L, 1);
  lua_rawset(L, seen);
  luaL_checkstack(L, 10, "tables are nested too deep");
  lua_pushnil(L);
  while (lua_next(L, i)) {
    int value = lua_gettop(L);
    int kind = lua_type(L, value);
    if (kind == LUA_TTABLE || kind == LUA_TUSERDATA) spare_tensors(L, s, value, seen, until);
    lua_settop(L, value - 1);
  }
}

/* keep(x): takes x, or the tensors in the table x, out of all scopes; returns x. */
LM_FUNCTION(keep) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 1);
  if (!s->scope) return 1;
  if (lm_to_tensor_handle(L, s, 1)) { /* the usual case makes no table */
    spare_tensors(L, s, 1, 0, NULL);
  } else {
    lua_newtable(L);
    spare_tensors(L, s, 1, 2, NULL);
    lua_settop(L, 1);
  }
  return 1;
}

/* Moves all handles of a scope to the one around it, or out of all. */
static void spare_all(lm_scope *scope) {
  while (scope->handles) {
    lm_tensor_handle *b = scope->handles;
    lm_tensor_handle_unlink(b);
    if (scope->outer) lm_tensor_handle_link(scope->outer, b);
  }
}

/* Returns whether the value at i may hold tensors that spare_tensors does not see. */
static bool is_opaque(lua_State *L, const lm_lua *s, int i) {
  int type = lua_type(L, i);
  return type == LUA_TTABLE || type == LUA_TFUNCTION || type == LUA_TTHREAD ||
         (type == LUA_TUSERDATA && !lm_to_tensor_handle(L, s, i));
}

/* Calls f with (f, ...) and spares the tensors it returns; all, if a module's call returns other objects.
 * lm_bind_scope calls it protected. */
int lm_bind_scope_body(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_scope *scope = s->scope, *outer = scope->outer;
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  int results = lua_gettop(L);
  luaL_checkstack(L, 10, "scope");
  bool tables = false;
  for (int i = 1; i <= results; i++) {
    tables |= lua_type(L, i) == LUA_TTABLE;
    if (scope->is_call && is_opaque(L, s, i)) spare_all(scope);
  }
  if (tables) lua_newtable(L);
  for (int i = 1; i <= results; i++) spare_tensors(L, s, i, results + 1, outer);
  lua_settop(L, results);
  return results;
}

/* Returns "was dropped at the end of the lm.scope at train.lua:12; …", kept alive in the table of sites. */
static const char *scope_site(lua_State *L) {
  lm_push_site(L);
  lua_pushfstring(L, "was dropped at the end of the lm.scope at %s; return it from the scope or spare it with lm.keep",
                  lua_tostring(L, -1));
  lua_remove(L, -2);
  lm_reg_get(L, &lm_reg_sites);
  lua_pushvalue(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  const char *text = lua_tostring(L, -1);
  lua_pop(L, 1);
  return text;
}

/* Drops a handle. Memory that this frees no longer counts towards the collector's next step. */
static void drop_handle(lm_lua *s, lm_tensor_handle *b, const char *why) {
  const lm_tensor *t = b->t;
  if (t && lm_is_only_owner(t)) {
    size_t bytes = lm_gc_step_weight(s, t);
    s->fresh -= lm_min(bytes, s->fresh);
  }
  lm_tensor_handle_drop(s, b, why);
}

/* Calls the body (upvalue 3) with the values on the stack, in a scope. */
static int run_in_scope(lua_State *L, lm_lua *s, lm_scope scope, const char *why) {
  luaL_checkstack(L, 10, "scope");
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  s->scope = &scope;
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  s->scope = scope.outer;
  while (scope.handles) drop_handle(s, scope.handles, why);
  return failed ? lua_error(L) : lua_gettop(L);
}

/* scope(f, ...) */
int lm_bind_scope(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_need_function(L, 1, "scope", "");
  luaL_checkstack(L, 10, "scope");
  return run_in_scope(L, s, (lm_scope){.outer = s->scope}, scope_site(L));
}

static const char intermediate_text[] = "was an intermediate result of a module's call";

/* call_own(f, module, ...): calls f of one of the library's modules. Results that f neither returns nor spares are
 * freed when it returns, unless it may store them in an argument. */
int lm_bind_call_own(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  bool frees = true;
  lm_need_function(L, 1, "call_own", "");
  for (int i = lua_gettop(L); i > 2; i--) frees &= !is_opaque(L, s, i);
  if (frees) return run_in_scope(L, s, (lm_scope){.outer = s->scope, .is_call = true}, intermediate_text);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* in_call_of_own() -> whether call_own would free a result that is made now */
LM_FUNCTION(in_call_of_own) {
  const lm_lua *s = LM_STATE(L);
  return lm_return_bool(L, s->scope && s->scope->is_call);
}

/* call_foreign(f, ...): calls a script's function, which may keep its arguments and the results that it makes, within
 * calls of the library's modules. */
LM_FUNCTION(call_foreign) {
  lm_lua *s = LM_STATE(L);
  lm_scope *inner = s->scope, *outer = inner;
  while (outer && outer->is_call) outer = outer->outer;
  if (lua_gettop(L) == 0) return lm_raise_arg(L, 1, "call_foreign", "f", "a function");
  int top = lua_gettop(L);
  luaL_checkstack(L, 10, "call_foreign");
  lua_newtable(L);
  for (int i = 2; i <= top; i++) spare_tensors(L, s, i, top + 1, outer);
  lua_settop(L, top);
  s->scope = outer;
  int failed = lm_pcall(L, top - 1, LUA_MULTRET);
  s->scope = inner;
  return failed ? lua_error(L) : lua_gettop(L);
}

/* free_intermediate(x, y): drops x, which a sequence of the library's modules made and passed to the one that returned
 * y, unless x is y or code of a script has seen it. */
LM_FUNCTION(free_intermediate) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *x = lm_to_tensor_handle(L, s, 1), *y = lm_to_tensor_handle(L, s, 2);
  if (x && y && x != y && x->intermediate) drop_handle(s, x, intermediate_text);
  return 0;
}
