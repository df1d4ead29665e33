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
    if (was_in && until && b->t) {
      b->next = until->handles;
      b->pprev = &until->handles;
      if (b->next) b->next->pprev = &b->next;
      until->handles = b;
    }
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
  if (s->fusion) lm_fusion_settle(s);
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

/* Calls f with (f, ...) and spares the tensors it returns. lm_bind_scope calls it protected. */
int lm_bind_scope_body(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_scope *outer = s->scope->outer;
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  int results = lua_gettop(L);
  luaL_checkstack(L, 10, "scope");
  bool tables = false;
  for (int i = 1; i <= results; i++) tables |= lua_type(L, i) == LUA_TTABLE;
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

/* scope(f, ...): upvalue 3 is its body. */
int lm_bind_scope(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_need_function(L, 1, "scope", "");
  luaL_checkstack(L, 10, "scope");
  const char *why = scope_site(L);
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  lm_scope scope = {.outer = s->scope};
  s->scope = &scope;
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  s->scope = scope.outer;
  while (scope.handles) lm_tensor_handle_drop(s, scope.handles, why);
  return failed ? lua_error(L) : lua_gettop(L);
}
