/* Reports and limits devices' memory, and pins host memory:
 *
 *   device_memory    free, total bytes
 *   pin_memory       a pinned copy, or x itself if it is pinned or no GPU is present; empty: the copy's values are not
 *                    set
 *   live_tensors     the number of tensor headers alive in the process (leak specs)
 *   _fail_alloc_from, _alloc_count    fault injection (base/mem.h)
 */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "device/alloc.h"
#include "device/driver.h"
#include "op/check.h"

static int push_bytes(lua_State *L, size_t bytes) { return lm_return_number(L, (double)bytes); }

/* Returns memory statistics of a device, by default of the default one. */
LM_READER(lm_memory_stats, memory_stats) { return lm_memory_stats_of(lm_need_device(L, i, fn, arg)); }
#define STATS (memory_stats, device, lm_memory_stats_of(lm_default_device()))
LM_FUNCTION(memory_allocated, STATS) { return push_bytes(L, device.allocated); }
LM_FUNCTION(memory_reserved, STATS) { return push_bytes(L, device.reserved); }
LM_FUNCTION(max_memory_allocated, STATS) { return push_bytes(L, device.max_allocated); }
LM_FUNCTION(max_memory_reserved, STATS) { return push_bytes(L, device.max_reserved); }

LM_FUNCTION(reset_peak_memory_stats, (device, device, lm_default_device())) {
  lm_memory_reset_peak(device);
  return 0;
}

LM_FUNCTION(empty_cache, (device, device, lm_default_device())) {
  lm_memory_empty_cache(device);
  return 0;
}

LM_FUNCTION_AS(device_memory, "mem_get_info", (device, device)) {
  const lm_driver *driver = lm_driver_of(device);
  size_t free = 0, total = 0;
  if (!driver || !driver->memory) return lm_raise(L, lm_fail_missing("mem_get_info", lm_device_name(device)));
  lm_need(L, driver->memory(lm_device_physical(device), &free, &total));
  lua_pushnumber(L, (double)free);
  lua_pushnumber(L, (double)total);
  return 2;
}

LM_FUNCTION_AS(device_set_fraction, "set_per_process_memory_fraction", (device, device), (number, fraction)) {
  return lm_return(L, lm_memory_set_fraction(device, fraction), 0);
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

LM_FUNCTION(pin_memory, (tensor, x), (flag, empty)) {
  if (LM_DEVICE_KIND(x->device) != LM_CPU)
    return lm_raise(L, lm_fail_value("pin_memory", "x", "on the CPU", lm_text("one on %s", lm_device_name(x->device))));
  if (lm_device_count(LM_CUDA) > 0 && !lm_is_pinned(x->data)) return lm_return_tensor(L, 2, attempt_pin);
  lua_settop(L, 1);
  return 1;
}

LM_FUNCTION(is_pinned, (tensor, x)) {
  return lm_return_bool(L, LM_DEVICE_KIND(x->device) == LM_CPU && lm_is_pinned(x->data));
}

/* ---- for specs */

LM_FUNCTION(live_tensors) {
  lm_callbacks_drain(L, LM_STATE(L)->callbacks); /* frees functions of freed graphs, which hold tensors */
  return lm_return_number(L, (double)lm_live_tensors());
}

LM_FUNCTION(_fail_alloc_from, (int, n)) {
  lm_alloc_fail_from((long)n);
  return 0;
}

LM_FUNCTION(_alloc_count) { return push_bytes(L, (size_t)lm_alloc_count()); }
