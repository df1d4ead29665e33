/* Reports and limits devices' memory, and pins host memory:
 *
 *   memory_allocated(device)  memory_reserved(device)  max_memory_allocated(device)
 *   max_memory_reserved(device)  reset_peak_memory_stats(device)  empty_cache(device)
 *   device_memory(device) -> free, total bytes        device_set_fraction(device, share)
 *   pin_memory(x[, empty]) -> a pinned copy, or x itself if it is pinned or no GPU is present; empty: the copy's values
 *     are not set      is_pinned(x)
 *   live_tensors()   the number of tensor headers alive in the process (leak specs)
 *   _fail_alloc_from(n)  _alloc_count()           fault injection (base/mem.h)
 */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "device/alloc.h"
#include "device/driver.h"
#include "op/check.h"

static int push_bytes(lua_State *L, size_t bytes) { return lm_return_number(L, (double)bytes); }

static lm_memory_stats stats_of(lua_State *L, const char *fn) {
  return lm_memory_stats_of(lm_device_or_default(L, 1, fn));
}

LM_FUNCTION(memory_allocated) { return push_bytes(L, stats_of(L, "memory_allocated").allocated); }
LM_FUNCTION(memory_reserved) { return push_bytes(L, stats_of(L, "memory_reserved").reserved); }
LM_FUNCTION(max_memory_allocated) { return push_bytes(L, stats_of(L, "max_memory_allocated").max_allocated); }
LM_FUNCTION(max_memory_reserved) { return push_bytes(L, stats_of(L, "max_memory_reserved").max_reserved); }

LM_FUNCTION(reset_peak_memory_stats) {
  lm_memory_reset_peak(lm_device_or_default(L, 1, "reset_peak_memory_stats"));
  return 0;
}

LM_FUNCTION(empty_cache) {
  lm_memory_empty_cache(lm_device_or_default(L, 1, "empty_cache"));
  return 0;
}

LM_FUNCTION(device_memory) {
  lm_device device = lm_need_device(L, 1, "mem_get_info");
  const lm_driver *driver = lm_driver_of(device);
  size_t free = 0, total = 0;
  if (!driver || !driver->memory) return lm_raise(L, lm_fail_missing("mem_get_info", lm_device_name(device)));
  lm_need(L, driver->memory(lm_device_physical(device), &free, &total));
  lua_pushnumber(L, (double)free);
  lua_pushnumber(L, (double)total);
  return 2;
}

LM_FUNCTION(device_set_fraction) {
  double share = lm_need_number(L, 2, "set_per_process_memory_fraction", "fraction");
  return lm_return(L, lm_memory_set_fraction(lm_need_device(L, 1, "set_per_process_memory_fraction"), share), 0);
}

/* ---- pinned host memory */

static lm_status attempt_pin(lua_State *L, lm_lua *s, void *arg) {
  lm_status status;
  lm_tensor **out = arg, *x, *copy = NULL;
  void *memory = NULL;
  TRY(lm_read_tensor(L, s, 1, "pin_memory", "x", &x));
  size_t bytes = lm_nbytes(x);
  TRY(lm_pinned_alloc(bytes > 0 ? bytes : 1, &memory));
  TRY(lm_tensor_foreign(x->dtype, LM_DEVICE(LM_CPU, 0), x->ndim, x->size, memory, bytes, lm_pinned_free, memory,
                        &copy));
  if (!lua_toboolean(L, 2)) TRY(lm_copy(x, copy));
  *out = lm_retain(copy);
done:
  lm_release(copy);
  return status;
}

LM_FUNCTION(pin_memory) {
  lm_tensor *x = lm_need_tensor(L, 1, "pin_memory", "x");
  if (LM_DEVICE_KIND(x->device) != LM_CPU)
    return lm_raise(L, lm_fail_value("pin_memory", "x", "on the CPU", lm_text("one on %s", lm_device_name(x->device))));
  if (lm_device_count(LM_CUDA) > 0 && !lm_is_pinned(x->data)) return lm_return_tensor(L, 2, attempt_pin);
  lua_settop(L, 1);
  return 1;
}

LM_FUNCTION(is_pinned) {
  const lm_tensor *x = lm_need_tensor(L, 1, "is_pinned", "x");
  return lm_return_bool(L, LM_DEVICE_KIND(x->device) == LM_CPU && lm_is_pinned(x->data));
}

/* ---- for specs */

LM_FUNCTION(live_tensors) {
  lm_callbacks_drain(L, LM_STATE(L)->callbacks); /* frees functions of freed graphs, which hold tensors */
  return lm_return_number(L, (double)lm_live_tensors());
}

LM_FUNCTION(_fail_alloc_from) {
  lm_alloc_fail_from((long)lm_need_int(L, 1, "_fail_alloc_from", "n"));
  return 0;
}

LM_FUNCTION(_alloc_count) { return push_bytes(L, (size_t)lm_alloc_count()); }
