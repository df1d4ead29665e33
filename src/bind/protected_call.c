/* Calls functions of the script by lua_pcall, and keeps the traceback of errors that pass through. */
#include "base/c_stack.h"
#include "bind/bind.h"

/* Returns true if a pcall, xpcall or coroutine's resume would catch an error raised here. */
static bool is_caught(lua_State *L) {
  lua_Debug ar;
  bool main = lua_pushthread(L), caught = !main;
  lua_pop(L, 1);
  lm_reg_get(L, &lm_reg_catchers);
  int catchers = lua_gettop(L);
  for (int level = 1; !caught && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "f", &ar);
    lua_rawget(L, catchers);
    caught = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return caught;
}

static _Thread_local bool passing; /* an error of lm_pcall is propagating, unless it was caught since */

/* Stores the traceback beside the message for core.traceback_of, since errors that pass through lm_pcall lose their
 * frames; adds it to the message if nobody catches the error. */
int lm_note_traceback(lua_State *L) {
  if (lua_type(L, 1) != LUA_TSTRING || !lua_checkstack(L, 16)) return 1;
  lua_settop(L, 1);
  lm_reg_get(L, &lm_reg_traceback); /* 2: {message, frames} */
  lua_rawgeti(L, 2, 1);
  if (passing && lua_rawequal(L, 1, 3)) {
    lua_settop(L, 1);
    return 1; /* the innermost call has the most frames */
  }
  luaL_traceback(L, L, NULL, 1); /* 4 */
  lua_pushvalue(L, 1);
  if (!is_caught(L)) {
    lua_pushliteral(L, "\n");
    lua_pushvalue(L, 4);
    lua_concat(L, 3);
  }
  lua_pushvalue(L, -1);
  lua_rawseti(L, 2, 1);
  lua_pushvalue(L, 4);
  lua_rawseti(L, 2, 2);
  return 1;
}

/* traceback_of(message): lm_pcall's traceback for this message, if it was the last raised; else nothing. */
LM_FUNCTION(traceback_of) {
  lua_settop(L, 1);
  lm_reg_get(L, &lm_reg_traceback);
  lua_rawgeti(L, 2, 1);
  if (lua_type(L, 1) != LUA_TSTRING || !lua_rawequal(L, 1, 3)) return 0;
  lua_rawgeti(L, 2, 2);
  return 1;
}

int lm_pcall(lua_State *L, int nargs, int nresults) {
  enum { RESERVE = 256 << 10 }; /* bytes for calls without this check: kernels, libraries; at most half the stack */
  const size_t size = lm_stack_size();
  if (lm_stack_left() >= (size / 2 < RESERVE ? size / 2 : RESERVE)) {
    int handler = lua_gettop(L) - nargs;
    lm_reg_get(L, &lm_reg_noting);
    lua_insert(L, handler);
    passing = false;
    int failed = lua_pcall(L, nargs, nresults, handler);
    passing = failed != 0;
    lua_remove(L, handler);
    return failed;
  }
  lua_pop(L, nargs + 1);
  lm_reg_get(L, &lm_reg_too_deep);
  return LUA_ERRRUN;
}
