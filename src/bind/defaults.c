/* Binds default dtype and device, and checks names of dtypes:
 *
 *   set_default_dtype(d)  get_default_dtype()  set_default_device(d)  get_default_device()
 *   dtype(v)         canonical dtype string ("float" -> "float32"), checked
 *   dtype_size(d)    bytes      is_floating_point(dtype or tensor) */
#include "base/message.h"
#include "bind/bind.h"

lm_device lm_device_or_default(lua_State *L, int i, const char *fn) {
  return lua_isnoneornil(L, i) ? lm_default_device() : lm_need_device(L, i, fn);
}

LM_FUNCTION(set_default_dtype) {
  lm_dtype d = lm_need_dtype(L, 1, "set_default_dtype", "dtype");
  if (!lm_dtype_is_float(d))
    return lm_raise(L, lm_fail_dtype("set_default_dtype", "dtype", "floating point", lm_dtype_name(d)));
  lm_set_default_dtype(d);
  return 0;
}

LM_FUNCTION(get_default_dtype) { return lm_return_text(L, lm_dtype_name(lm_default_dtype())); }

LM_FUNCTION(set_default_device) {
  lm_set_default_device(lua_isnoneornil(L, 1) ? LM_DEVICE(LM_CPU, 0) : lm_need_device(L, 1, "set_default_device"));
  return 0;
}

LM_FUNCTION(get_default_device) { return lm_return_text(L, lm_device_name(lm_default_device())); }

/* dtype(name [, who]): returns a dtype's full name; `who`: the function named in errors. */
LM_FUNCTION(dtype) {
  const char *who = lm_to_text(L, 2);
  return lm_return_text(L, lm_dtype_name(lm_need_dtype(L, 1, who ? who : "dtype", "dtype")));
}

LM_FUNCTION(dtype_size) {
  return lm_return_int(L, (lua_Integer)lm_dtype_size(lm_need_dtype(L, 1, "dtype_size", "dtype")));
}

LM_FUNCTION(is_floating_point) {
  static const char fn[] = "is_floating_point";
  bool named = lua_type(L, 1) == LUA_TSTRING;
  return lm_return_bool(
      L, lm_dtype_is_float(named ? lm_need_dtype(L, 1, fn, "dtype") : lm_need_tensor(L, 1, fn, "x")->dtype));
}
