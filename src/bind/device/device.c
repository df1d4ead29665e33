/* Names, selects and describes devices, for lm.cuda (with stream.c and memory.c).
 *
 *   device            canonical device string of a string or CUDA ordinal ("cpu:0" -> "cpu"), checked; who: the
 *                     function that errors name
 *   device_why_none   the reason for a count of 0, or nil
 */
#include "bind/bind.h"
#include "device/driver.h"

LM_READER(int, device_kind) {
  const char *kind = lm_to_text(L, i);
  if (!kind || (strcmp(kind, "cpu") != 0 && strcmp(kind, "cuda") != 0))
    return lm_raise_arg(L, i, fn, arg, "\"cpu\" or \"cuda\"");
  return strcmp(kind, "cpu") == 0 ? LM_CPU : LM_CUDA;
}

LM_FUNCTION(device, (any, name), (text, who, "device")) {
  return lm_return_text(L, lm_device_name(lm_need_device(L, name, who, "device")));
}

LM_FUNCTION(device_count, (device_kind, kind)) { return lm_return_int(L, lm_device_count(kind)); }

LM_FUNCTION(device_current, (device_kind, kind)) { return lm_return_text(L, lm_device_name(lm_device_current(kind))); }

LM_FUNCTION_AS(device_set_current, "set_device", (device, device)) {
  lm_device_set_current(device);
  return 0;
}

LM_FUNCTION(with_device) {
  lm_device device = lm_need_device(L, 1, "device", "device"), before = lm_device_current(LM_DEVICE_KIND(device));
  lm_need_function(L, 2, "cuda.device", "1, ");
  lm_device_set_current(device);
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_device_set_current(before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

LM_FUNCTION(device_why_none, (device_kind, kind)) {
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
LM_FUNCTION(device_properties, (device, device)) {
  const lm_driver *driver = lm_driver_of(device);
  lua_createtable(L, 0, 128);
  if (driver && driver->properties) lm_need(L, driver->properties(lm_device_physical(device), put_property, L));
  return 1;
}

LM_FUNCTION_AS(device_peers, "can_device_access_peer", (device, device), (device, peer)) {
  const lm_driver *driver = lm_driver_of(device);
  int from = lm_device_physical(device), to = lm_device_physical(peer);
  bool same = LM_DEVICE_KIND(device) == LM_DEVICE_KIND(peer);
  return lm_return_bool(L,
                        same && device != peer &&
                            (from == to || (driver && driver->can_access_peer && driver->can_access_peer(from, to))));
}

LM_FUNCTION(synchronize, (device, device, lm_default_device())) {
  lm_need(L, lm_settle());
  return lm_return(L, lm_device_synchronize(device), 0);
}
