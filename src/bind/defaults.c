/* Sets the default dtype and device, and checks names of dtypes:
 *
 *   dtype         canonical dtype string ("float" -> "float32"), checked; who: the function that errors name
 *   dtype_size    bytes
 */
#include "base/message.h"
#include "bind/bind.h"

LM_FUNCTION(set_default_dtype, (dtype, dtype)) {
  if (!lm_dtype_is_float(dtype))
    return lm_raise(L, lm_fail_dtype("set_default_dtype", "dtype", "floating point", lm_dtype_name(dtype)));
  lm_set_default_dtype(dtype);
  return 0;
}

LM_FUNCTION(get_default_dtype) { return lm_return_text(L, lm_dtype_name(lm_default_dtype())); }

LM_FUNCTION(set_default_device, (device, device, LM_DEVICE(LM_CPU, 0))) {
  lm_set_default_device(device);
  return 0;
}

LM_FUNCTION(get_default_device) { return lm_return_text(L, lm_device_name(lm_default_device())); }

LM_FUNCTION(dtype, (any, name), (text, who, "dtype")) {
  return lm_return_text(L, lm_dtype_name(lm_need_dtype(L, name, who, "dtype")));
}

LM_FUNCTION(dtype_size, (dtype, dtype)) { return lm_return_int(L, (lua_Integer)lm_dtype_size(dtype)); }

LM_FUNCTION(is_floating_point) {
  static const char fn[] = "is_floating_point";
  if (lua_type(L, 1) == LUA_TSTRING) return lm_return_bool(L, lm_dtype_is_float(lm_need_dtype(L, 1, fn, "dtype")));
  const lm_tensor *x = lm_to_shaped(L, LM_STATE(L), 1);
  return lm_return_bool(L, lm_dtype_is_float((x ? x : lm_need_tensor(L, 1, fn, "x"))->dtype));
}
