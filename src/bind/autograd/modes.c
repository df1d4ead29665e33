/* Runs functions in a mode of recording, anomaly detection or autocast, and restores the mode however they end. The
 * scopes are C functions because a yield across a C call is an error, where a Lua pcall would let a coroutine leak the
 * mode. */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

static int with_grad(lua_State *L, const char *fn, bool on) {
  lm_need_function(L, 1, fn, "");
  bool before = lm_grad_enabled();
  lm_set_grad_enabled(on);
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  lm_set_grad_enabled(before);
  return failed ? lua_error(L) : lua_gettop(L);
}

LM_FUNCTION(no_grad) { return with_grad(L, "no_grad", false); }
LM_FUNCTION(enable_grad) { return with_grad(L, "enable_grad", true); }

LM_FUNCTION(is_grad_enabled) { return lm_return_bool(L, lm_grad_enabled()); }

LM_FUNCTION(set_grad_enabled, (boolean, on)) {
  lua_pushboolean(L, lm_grad_enabled());
  lm_set_grad_enabled(on);
  return 1;
}

/* detect_anomaly(f, ...): returns f(...), called in anomaly mode */
LM_FUNCTION(detect_anomaly) {
  lm_need_function(L, 1, "autograd.detect_anomaly", "");
  bool before = lm_anomaly();
  lm_set_anomaly(true);
  lm_lines_changed(LM_STATE(L));
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  lm_set_anomaly(before);
  return failed ? lua_error(L) : lua_gettop(L);
}

/* Returns the setting before. */
LM_FUNCTION(set_detect_anomaly, (boolean, on)) {
  lua_pushboolean(L, lm_anomaly());
  lm_set_anomaly(on);
  lm_lines_changed(LM_STATE(L));
  return 1;
}

/* is_checkpointing() -> true inside a checkpoint's function; true if backward runs it again */
LM_FUNCTION(is_checkpointing) {
  lua_pushboolean(L, lm_recompute_is_active());
  lua_pushboolean(L, lm_recompute_is_rerun());
  return 2;
}

LM_FUNCTION(is_anomaly_enabled) { return lm_return_bool(L, lm_anomaly()); }

/* autocast({device = …, dtype = …, enabled = true, cache_enabled = true}, f, ...): runs f with autocast set for one
 * kind of device, or for every kind if none is given; other kinds keep the surrounding scopes' settings. cache_enabled
 * holds for all kinds. dtype: by default float16 on CUDA, bfloat16 elsewhere. */
LM_FUNCTION(autocast) {
  lm_device device = LM_NO_DEVICE;
  lm_dtype dtype = LM_NO_DTYPE;
  bool enabled = true, cached = true;
  const lm_param params[] = {{"device_type", LM_ARG_DEVICE, &device},
                             {"dtype", LM_ARG_DTYPE, &dtype},
                             {"enabled", LM_ARG_B, &enabled},
                             {"cache_enabled", LM_ARG_B, &cached},
                             {"device", LM_ARG_DEVICE, &device}};
  int top = lua_gettop(L), f = 1;
  uint32_t given;
  while (f < top && lua_type(L, f) != LUA_TFUNCTION) f++;
  if (f == 1 || lua_type(L, f) != LUA_TFUNCTION) {
    if (lua_type(L, 1) == LUA_TTABLE) lm_need_function(L, 2, "autocast", "{…}, ");
    lm_status status = lm_fail_arg(L, LM_STATE(L), 1, "autocast", "options", "a table before the function");
    return lm_raise(L, lm_remedy(status, "write lm.autocast({dtype = \"bfloat16\"}, function() … end)"));
  }
  luaL_checkstack(L, 8, "autocast");
  lm_need(L, lm_read_call(L, LM_STATE(L), 1, f - 1, "autocast", 4, 5, params, &given));
  if (dtype != LM_NO_DTYPE && !lm_dtype_is_half(dtype))
    return lm_raise(L, lm_fail_dtype("autocast", "dtype", "bfloat16 or float16", lm_dtype_name(dtype)));
  lm_autocast mode = lm_autocast_get();
  mode.uncached = !cached;
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    if (device != LM_NO_DEVICE && LM_DEVICE_KIND(device) != kind) continue;
    mode.on = (uint16_t)((mode.on & ~(1u << kind)) | (unsigned)enabled << kind);
    mode.dtype[kind] = dtype != LM_NO_DTYPE ? dtype : kind == LM_CUDA ? LM_F16 : LM_BF16;
  }
  lm_autocast before = lm_autocast_enter(mode);
  int failed = lm_pcall(L, top - f, LUA_MULTRET);
  lm_autocast_leave(before);
  return failed ? lua_error(L) : lua_gettop(L) - f + 1;
}

LM_HELD_TYPE(cast_group, lm_cast_group, lm_cast_group_free, "luminary.cast_group", "a cast group", NULL, NULL)

/* cast_group(list) -> an object; while it lives, autocast casts these parameters together */
LM_FUNCTION(cast_group) {
  lm_tensor **leaf = NULL;
  int n = 0;
  lm_cast_group **g = lm_object_new(L, &cast_group_type);
  lm_status status = lm_read_list(L, LM_STATE(L), 1, "cast_group", "params", false, &n, &leaf);
  if (status == LM_OK) status = lm_cast_group_new(n, leaf, g);
  lm_free(leaf);
  lm_need(L, status);
  return 1;
}

/* Returns true if autocast is on for that kind of device, or for any kind. */
LM_FUNCTION(is_autocast_enabled, (device, device, LM_NO_DEVICE)) {
  uint16_t on = lm_autocast_get().on;
  return lm_return_bool(L, device == LM_NO_DEVICE ? on != 0 : on >> LM_DEVICE_KIND(device) & 1);
}

/* Returns the dtype to which autocast casts on that kind of device, or nil if it is off. */
LM_FUNCTION(get_autocast_dtype, (device, device, lm_default_device())) {
  int kind = LM_DEVICE_KIND(device);
  lm_autocast mode = lm_autocast_get();
  if (!(mode.on >> kind & 1)) return 0;
  return lm_return_text(L, lm_dtype_name(mode.dtype[kind]));
}
