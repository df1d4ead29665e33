/* Defaults, and words for dtypes checked:
 *
 *   set_default_dtype(d)  get_default_dtype()  set_default_device(d)  get_default_device()
 *   dtype(v)         canonical dtype string ("float" -> "float32"), checked
 *   dtype_size(d)    bytes      is_floating_point(dtype or tensor)
 */
#include "base/message.h"
#include "bind/bind.h"

lm_device lm_device_or_default(lua_State *L, int i, const char *fn) {
  return lua_isnoneornil(L, i) ? lm_default_device() : lm_need_device(L, i, fn);
}

static int bind_set_default_dtype(lua_State *L) {
  lm_dtype d = lm_need_dtype(L, 1, "set_default_dtype", "dtype");
  if (!lm_dtype_is_float(d))
    return lm_raise(L, lm_fail_dtype("set_default_dtype", "dtype", "floating point", lm_dtype_name(d)));
  lm_set_default_dtype(d);
  return 0;
}

static int bind_get_default_dtype(lua_State *L) { return lm_return_text(L, lm_dtype_name(lm_default_dtype())); }

static int bind_set_default_device(lua_State *L) {
  lm_set_default_device(lua_isnoneornil(L, 1) ? LM_DEVICE(LM_CPU, 0) : lm_need_device(L, 1, "set_default_device"));
  return 0;
}

static int bind_get_default_device(lua_State *L) { return lm_return_text(L, lm_device_name(lm_default_device())); }

/* dtype(name [, who]): a dtype's full name; `who` is the function that errors name. */
static int bind_dtype(lua_State *L) {
  const char *who = lm_to_text(L, 2);
  return lm_return_text(L, lm_dtype_name(lm_need_dtype(L, 1, who ? who : "dtype", "dtype")));
}

static int bind_dtype_size(lua_State *L) {
  return lm_return_int(L, (lua_Integer)lm_dtype_size(lm_need_dtype(L, 1, "dtype_size", "dtype")));
}

static int bind_is_floating_point(lua_State *L) {
  static const char fn[] = "is_floating_point";
  bool named = lua_type(L, 1) == LUA_TSTRING;
  return lm_return_bool(
      L, lm_dtype_is_float(named ? lm_need_dtype(L, 1, fn, "dtype") : lm_need_tensor(L, 1, fn, "x")->dtype));
}

const luaL_Reg lm_default_functions[] = {FN(set_default_dtype),
                                         FN(get_default_dtype),
                                         FN(set_default_device),
                                         FN(get_default_device),
                                         FN(dtype),
                                         FN(dtype_size),
                                         FN(is_floating_point),
                                         {NULL, NULL}};
