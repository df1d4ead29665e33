/* Adds the number of compute threads, the time, and environment variables of the process or a worker thread's script.
 *
 *   time      seconds, monotonic
 *   getenv    a variable as the C library sees it
 */
#include <stdlib.h>

#include "base/message.h"
#include "base/parallel.h"
#include "base/thread_state.h"
#include "bind/bind.h"
#include "op/kernels.h"

static const lm_backend *need_cpu(lua_State *L) {
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  if (!cpu) lm_raise(L, LM_E_MISSING);
  return cpu;
}

LM_FUNCTION(set_num_threads, (int, n)) {
  if (n < 1 || n > LM_MAX_THREADS) return lm_raise(L, lm_fail_int("set_num_threads", "n", "from 1 to 256", n));
  need_cpu(L)->set_threads((int)n);
  return 0;
}

LM_FUNCTION(get_num_threads) { return lm_return_int(L, need_cpu(L)->get_threads()); }

LM_FUNCTION(time) { return lm_return_number(L, lm_seconds()); }

/* Registry key of a worker thread's own variables: a table from names to strings, or to false for removed ones. */
static const char own_environment;

static int set_own(lua_State *L) { /* name at 1, value at 2 */
  lm_reg_get(L, &own_environment);
  if (!lua_istable(L, -1)) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lm_reg_set(L, &own_environment);
  }
  lua_pushvalue(L, 1);
  if (lua_isnoneornil(L, 2)) {
    lua_pushboolean(L, 0);
  } else {
    lua_pushvalue(L, 2);
    lua_tostring(L, -1);
  }
  lua_rawset(L, -3);
  return 0;
}

/* Returns true, with the value (or nil) on the stack, if the worker thread has set or removed the name at 1. */
static bool push_own(lua_State *L) {
  lm_reg_get(L, &own_environment);
  if (!lua_istable(L, -1)) return false;
  lua_pushvalue(L, 1);
  lua_rawget(L, -2);
  if (lua_isnil(L, -1)) return false;
  if (!lua_toboolean(L, -1)) lua_pushnil(L);
  return true;
}

LM_FUNCTION(setenv, (any, key), (any, new)) {
  if (lua_type(L, 2) == LUA_TNUMBER) lua_tostring(L, 2); /* converts it in place */
  const char *name = lm_to_text(L, 1), *value = lm_to_text(L, 2);
  if (!name) return lm_raise_arg(L, 1, "setenv", "name", "a string");
  if (!lua_isnil(L, 2) && !value)
    return lm_raise_arg(L, 2, "setenv", "value", "a string, or nil to remove the variable");
  int kind = lm_device_kind_that_read(name);
  if (kind >= 0)
    return lm_raise_text(L, "setenv: cannot set %s after the first use of a %s device; set it before", name,
                         lm_device_kind_name(kind));
  if (lm_is_script_thread() && *name && !strchr(name, '=')) return set_own(L);
  int failed = value ? setenv(name, value, 1) : unsetenv(name);
  if (failed) return lm_raise_arg(L, 1, "setenv", "name", "non-empty and without '='");
  return 0;
}

LM_FUNCTION(getenv, (text, name)) {
  if (lm_is_script_thread() && push_own(L)) return 1;
  return lm_return_text(L, getenv(name));
}
