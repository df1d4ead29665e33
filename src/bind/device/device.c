/* Names, selects and describes devices, for lm.cuda (with stream.c and memory.c).
 *
 *   device(v)        canonical device string of a string or CUDA ordinal ("cpu:0" -> "cpu"), checked
 *   device_count(kind)  kind: "cpu" or "cuda"       device_why_none(kind) -> the reason for a count of 0, or nil
 *   device_current(kind) -> device      device_set_current(device)      with_device(device, f, ...)
 *   device_properties(device) -> table  device_peers(device, other) -> boolean
 *   synchronize(device)
 */
#include "bind/bind.h"
#include "device/driver.h"

static int need_kind(lua_State *L, const char *fn) {
  const char *kind = lm_to_text(L, 1);
  if (!kind || (strcmp(kind, "cpu") != 0 && strcmp(kind, "cuda") != 0))
    return lm_raise_arg(L, 1, fn, "kind", "\"cpu\" or \"cuda\"");
  return strcmp(kind, "cpu") == 0 ? LM_CPU : LM_CUDA;
}

/* device(name [, who]): a device's full name; `who` is the function that errors name. */
LM_FUNCTION(device) {
  const char *who = lm_to_text(L, 2);
  return lm_return_text(L, lm_device_name(lm_need_device(L, 1, who ? who : "device")));
}

LM_FUNCTION(device_count) { return lm_return_int(L, lm_device_count(need_kind(L, "device_count"))); }

LM_FUNCTION(device_current) {
  return lm_return_text(L, lm_device_name(lm_device_current(need_kind(L, "device_current"))));
}

LM_FUNCTION(device_set_current) {
  lm_device_set_current(lm_need_device(L, 1, "set_device"));
  return 0;
}

LM_FUNCTION(with_device) {
  lm_device device = lm_need_device(L, 1, "device"), before = lm_device_current(LM_DEVICE_KIND(device));
  lm_need_function(L, 2, "cuda.device", "1, ");
  lm_device_set_current(device);
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_device_set_current(before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

LM_FUNCTION(device_why_none) {
  int kind = need_kind(L, "device_why_none");
  return lm_return_text(L, lm_device_count(kind) > 0 ? NULL : lm_device_why_none(kind));
}

static void put_property(void *ctx, const lm_property *p) { /* the table is on top */
  lua_State *L = ctx;
  if (p->kind == LM_PROPERTY_TEXT) {
    lm_set_text(L, p->name, p->text);
  } else {
    lm_set_number(L, p->name, p->number);
  }
}

/* Returns a table that the driver's call fills. Lua makes the table's room beforehand, so that only lack of memory for
 * a string raises through the driver's C frames, which own nothing. */
LM_FUNCTION(device_properties) {
  lm_device device = lm_need_device(L, 1, "device_properties");
  const lm_driver *driver = lm_driver_of(device);
  lua_createtable(L, 0, 128);
  if (driver && driver->properties) lm_need(L, driver->properties(lm_device_physical(device), put_property, L));
  return 1;
}

LM_FUNCTION(device_peers) {
  lm_device a = lm_need_device(L, 1, "can_device_access_peer"), b = lm_need_device(L, 2, "can_device_access_peer");
  const lm_driver *driver = lm_driver_of(a);
  int from = lm_device_physical(a), to = lm_device_physical(b);
  bool same = LM_DEVICE_KIND(a) == LM_DEVICE_KIND(b);
  return lm_return_bool(
      L, same && a != b && (from == to || (driver && driver->can_access_peer && driver->can_access_peer(from, to))));
}

LM_FUNCTION(synchronize) { return lm_return(L, lm_device_synchronize(lm_device_or_default(L, 1, "synchronize")), 0); }
