/* Runs the functions that choose one of several ops by their arguments. */
#include <string.h>

#include "bind/bind.h"
#include "op_entries.h"

/* Returns whether {key = true} is among the options at the end. */
static bool is_asked(lua_State *L, const char *key) {
  int top = lua_gettop(L);
  while (top > 0 && lua_isnil(L, top)) top--;
  if (top < 2 || lua_type(L, top) != LUA_TTABLE || !lm_field(L, top, key)) return false;
  bool asked = lua_type(L, -1) == LUA_TBOOLEAN && lua_toboolean(L, -1);
  lua_pop(L, 1);
  return asked;
}

/* Returns whether the argument of that name is given by position as true. */
static bool is_given(lua_State *L, lm_op_id op, const char *name) {
  int i = 0;
  while (i < lm_ops[op].nargs && strcmp(lm_ops[op].arg[i].name, name) != 0) i++;
  return i < lm_ops[op].npositional && lua_type(L, i + 1) == LUA_TBOOLEAN && lua_toboolean(L, i + 1);
}

/* Returns the op that a call of an overloaded name stands for: x:max() is a value, x:max(dim) values and indices,
 * x:max(other) the larger of each pair. */
static lm_op_id chosen(lua_State *L, const lm_overload *o) {
  int second = lua_type(L, 2);
  if (o->option && (is_asked(L, o->option) || is_given(L, o->with, o->option))) return o->with;
  if (second == LUA_TNUMBER) return o->number;
  if (second == LUA_TUSERDATA) return o->tensor;
  if (second != LUA_TTABLE || !lm_field(L, 2, "dim")) return o->op;
  bool one = lua_type(L, -1) == LUA_TNUMBER;
  lua_pop(L, 1);
  return one ? o->number : o->op;
}

int lm_bind_overload(lua_State *L) {
  const lm_overload *o = lua_touserdata(L, lua_upvalueindex(3));
  if (lua_gettop(L) > 0 && lua_type(L, 2) <= LUA_TNIL && !lm_to_tensor_handle(L, LM_STATE(L), 1)) {
    return lm_raise_arg(L, 1, o->name, "x", "a tensor");
  }
  return lm_run_op(L, chosen(L, o), false);
}

enum { ALL_INDICES = 1 };

static lm_status take_columns(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor **column = arg, *all;
  NEED(lm_read_tensor(L, s, ALL_INDICES, "nonzero", "x", &all));
  for (int d = 0; d < all->size[1]; d++) {
    lm_select_args a = {.x = all, .dim = 1, .index = d + 1};
    if (!column[d]) NEED(lm_call(LM_OP_select, &a, &column[d]));
  }
  return LM_OK;
}

/* Returns to Lua nonzero's indices with as_tuple: one tensor for each dim, the columns of nonzero's result. */
static int push_indices(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_run_op(L, LM_OP_nonzero, false);
  lua_replace(L, ALL_INDICES);
  lua_settop(L, ALL_INDICES);
  lm_tensor *column[LM_MAX_DIMS] = {NULL};
  lm_tensor_handle *handle[LM_MAX_DIMS];
  int n = (int)lm_to_tensor(L, s, ALL_INDICES)->size[1];
  luaL_checkstack(L, n + LUA_MINSTACK, "nonzero");
  for (int d = 0; d < n; d++) handle[d] = lm_tensor_handle_new(L);
  lm_status status = lm_retry_after_gc(L, s, take_columns, column);
  for (int d = 0; d < n; d++) {
    if (status != LM_OK) lm_release(column[d]);
    if (status == LM_OK) lm_tensor_handle_fill(s, handle[d], column[d]);
  }
  return status == LM_OK ? n : lm_raise(L, status);
}

int lm_bind_nonzero(lua_State *L) {
  return is_asked(L, "as_tuple") ? push_indices(L) : lm_run_op(L, LM_OP_nonzero, false);
}

/* Runs where; where(condition) alone is nonzero with as_tuple. */
int lm_bind_where(lua_State *L) {
  bool one = lua_gettop(L) == 1 && lm_to_tensor_handle(L, LM_STATE(L), 1);
  return one ? push_indices(L) : lm_run_op(L, LM_OP_where, false);
}
