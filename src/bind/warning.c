/* Warnings: once for each line of the caller's. */
#include <stdatomic.h>

#include "base/log.h"
#include "bind/bind.h"

static atomic_bool silent;

/* set_warnings(on): whether there are any. Gives what was before. */
static int bind_set_warnings(lua_State *L) {
  bool on = lm_need_bool(L, 1, "set_warnings", "on");
  return lm_return_bool(L, !atomic_exchange(&silent, !on));
}

/* warn(text) */
static int bind_warn(lua_State *L) {
  lm_warn("%s", luaL_checkstring(L, 1));
  lm_show_warning(L);
  return 0;
}

void lm_show_warning(lua_State *L) {
  const char *text = lm_take_warning();
  if (!text || atomic_load(&silent)) return;
  int top = lua_gettop(L);
  luaL_checkstack(L, 8, "warning");
  lm_reg_get(L, &lm_reg_warned);
  lm_push_where(L);
  lua_pushvalue(L, -1);
  lua_rawget(L, -3);
  if (lua_isnil(L, -1)) {
    lm_say("%swarning: %s", lua_tostring(L, -2), text);
    lua_pushvalue(L, -2);
    lua_pushboolean(L, 1);
    lua_rawset(L, -5);
  }
  lua_settop(L, top);
}

const luaL_Reg lm_warning_functions[] = {{"set_warnings", bind_set_warnings}, {"warn", bind_warn}, {NULL, NULL}};
