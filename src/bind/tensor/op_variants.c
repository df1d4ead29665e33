/* Functions of which each call is one of several ops, by what it is given. */
#include "bind/bind.h"

/* x:max() is a value, x:max(dim) values and indices, x:max(other) the larger of each pair. */
static int choose(lua_State *L, const char *fn, lm_op_id all, lm_op_id along, lm_op_id pairs) {
  lm_lua *s = LM_STATE(L);
  int second = lua_type(L, 2);
  if (second == LUA_TNUMBER) return lm_run_op(L, along, false);
  if (second == LUA_TUSERDATA) return lm_run_op(L, pairs, false);
  if (second == LUA_TTABLE && lm_field(L, 2, "dim")) {
    bool one = lua_type(L, -1) == LUA_TNUMBER;
    lua_pop(L, 1);
    return lm_run_op(L, one ? along : all, false);
  }
  if (lua_gettop(L) > 0 && second <= LUA_TNIL && !lm_to_tensor_handle(L, s, 1)) {
    return lm_raise_text(L, "%s: x: a tensor expected, got %s", fn, lm_got(L, s, 1));
  }
  return lm_run_op(L, all, false);
}

static int bind_max(lua_State *L) { return choose(L, "max", LM_OP_amax, LM_OP_max_dim, LM_OP_maximum); }
static int bind_min(lua_State *L) { return choose(L, "min", LM_OP_amin, LM_OP_min_dim, LM_OP_minimum); }

/* Is {key = true} among the options at the end? */
static bool is_asked(lua_State *L, const char *key) {
  int top = lua_gettop(L);
  while (top > 0 && lua_isnil(L, top)) top--;
  if (top < 2 || lua_type(L, top) != LUA_TTABLE || !lm_field(L, top, key)) return false;
  bool asked = lua_type(L, -1) == LUA_TBOOLEAN && lua_toboolean(L, -1);
  lua_pop(L, 1);
  return asked;
}

/* With return_indices it has two results, which is another op. */
static int bind_max_pool2d(lua_State *L) {
  return lm_run_op(L, is_asked(L, "return_indices") ? LM_OP_max_pool2d_with_indices : LM_OP_max_pool2d, false);
}

enum { ALL_INDICES = 1 };

static lm_status take_columns(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor **column = arg, *all;
  lm_status status = LM_OK;
  TRY(lm_read_tensor(L, s, ALL_INDICES, "nonzero", "x", &all));
  for (int d = 0; d < all->size[1]; d++) {
    lm_select_args a = {.x = all, .dim = 1, .index = d + 1};
    if (!column[d]) TRY(lm_call(LM_OP_select, &a, &column[d]));
  }
done:
  return status;
}

/* With as_tuple it has a result for each dim: the columns of what it has otherwise. */
static int bind_nonzero(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  if (!is_asked(L, "as_tuple")) return lm_run_op(L, LM_OP_nonzero, false);
  lm_run_op(L, LM_OP_nonzero, false);
  lua_replace(L, ALL_INDICES);
  lua_settop(L, ALL_INDICES);
  lm_tensor *column[LM_MAX_DIMS] = {NULL};
  lm_tensor_handle *handle[LM_MAX_DIMS];
  int n = (int)lm_to_tensor(L, s, ALL_INDICES)->size[1];
  luaL_checkstack(L, n + LUA_MINSTACK, "nonzero");
  for (int d = 0; d < n; d++) handle[d] = lm_tensor_handle_new(L);
  lm_status status = lm_attempt_twice(L, s, take_columns, column);
  for (int d = 0; d < n; d++) {
    if (status != LM_OK) lm_release(column[d]);
    if (status == LM_OK) lm_tensor_handle_fill(s, handle[d], column[d]);
  }
  return status == LM_OK ? n : lm_raise(L, status);
}

const luaL_Reg lm_variant_functions[] = {
    {"max", bind_max}, {"min", bind_min}, {"max_pool2d", bind_max_pool2d}, {"nonzero", bind_nonzero}, {NULL, NULL}};
