/* Shows warnings once for each line of the caller; those of ported code once for each line and function. */
#include <stdatomic.h>

#include "base/environment_variable.h"
#include "base/log.h"
#include "bind/bind.h"

typedef enum level { UNASKED, SILENT, USUAL, PORTING, PORTING_LINES } level;
static atomic_int chosen; /* the level of warnings */

static level level_now(void) {
  int now = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (now != UNASKED) return (level)now;
  const char *set = lm_variable_get(LM_VAR_PORT);
  int first = set && *set == '2' ? PORTING_LINES : lm_variable_is_on(LM_VAR_PORT, false) ? PORTING : USUAL;
  return atomic_compare_exchange_strong(&chosen, &now, first) ? (level)first : (level)now;
}

bool lm_is_porting(void) { return level_now() >= PORTING; }
bool lm_is_porting_lines(void) { return level_now() == PORTING_LINES; }

void lm_show_warning(lua_State *L) { lm_show_warning_of(L, ""); }

void lm_show_warning_of(lua_State *L, const char *name) {
  const char *text = lm_take_warning();
  if (!text || level_now() == SILENT) return;
  int top = lua_gettop(L);
  luaL_checkstack(L, 8, "warning");
  lm_reg_get(L, &lm_reg_warned);
  lm_push_where(L);
  lua_pushvalue(L, -1);
  lua_pushstring(L, name);
  lua_concat(L, 2);
  lua_pushvalue(L, -1);
  lua_rawget(L, top + 1);
  if (lua_isnil(L, -1)) {
    lm_print_stderr("%swarning: %s", lua_tostring(L, top + 2), text);
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
    lua_rawset(L, top + 1);
  }
  lua_settop(L, top);
}

/* ---- Python's names of values */

static int bind_missing_global(lua_State *L) {
  static const struct { const char *name, *here; } names[] = {{"True", "true"}, {"False", "false"}, {"None", "nil"}};
  const char *name = lm_is_porting() ? lm_to_text(L, 2) : NULL;
  for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++) {
    if (strcmp(name, names[i].name) != 0) continue;
    lm_warn("%s is not defined in Lua; write %s", name, names[i].here);
    lm_show_warning_of(L, name);
  }
  return 0;
}

void lm_watch_python_names(lua_State *L) {
  const bool wanted = lm_is_porting();
  const int top = lua_gettop(L);
  luaL_checkstack(L, 4, "globals");
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  if (!lua_getmetatable(L, top + 1)) {
    if (wanted) {
      lua_createtable(L, 0, 1);
      lua_pushcfunction(L, bind_missing_global);
      lua_setfield(L, -2, "__index");
      lua_setmetatable(L, top + 1);
    }
  } else if (!wanted && lm_field(L, top + 2, "__index") && lua_tocfunction(L, -1) == bind_missing_global) {
    lua_pushnil(L); /* the script may have added fields to that table */
    lua_setfield(L, top + 2, "__index");
    lua_settop(L, top + 2);
    lua_pushnil(L);
    if (!lua_next(L, top + 2)) {
      lua_pushnil(L);
      lua_setmetatable(L, top + 1);
    }
  }
  lua_settop(L, top);
}

/* set_warnings(on): true, false or "port". Returns the setting before. */
LM_FUNCTION(set_warnings) {
  const char *word = lua_type(L, 1) == LUA_TSTRING ? lm_to_text(L, 1) : NULL;
  level now = PORTING, before = level_now();
  if (!word && lua_type(L, 1) != LUA_TBOOLEAN) {
    return lm_raise_arg(L, 1, "set_warnings", "on", "true, false or \"port\"");
  } else if (!word) {
    now = lua_toboolean(L, 1) ? USUAL : SILENT;
  } else if (strcmp(word, "port") != 0) {
    return lm_raise_arg(L, 1, "set_warnings", "on", "true, false or \"port\"");
  }
  atomic_store(&chosen, now);
  lm_watch_python_names(L);
  return before >= PORTING ? lm_return_text(L, "port") : lm_return_bool(L, before == USUAL);
}

/* warn(text [, name]): shows a warning once for each line and name */
LM_FUNCTION(warn, (text, message), (text, name, "")) {
  lm_warn("%s", message);
  lm_show_warning_of(L, name);
  return 0;
}
