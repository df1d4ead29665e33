/* Devices and their streams: what lm.cuda is made of. Streams are named by device and number; they live as long as
 * the process.
 *
 *   device_current(kind) -> device      device_set_current(device)      with_device(device, f, ...)
 *   device_why_none(kind) -> text or nil          device_properties(device) -> table
 *   device_memory(device) -> free, total bytes    device_peers(device, other) -> boolean
 *   device_set_fraction(device, share)
 *   stream_current(device) -> id        stream_new(device, priority) -> id      stream_priority(device, id)
 *   with_stream(device, id, f, ...)     stream_set(device, id)
 *   stream_native(device, id) -> lightuserdata
 *   stream_wait(device, id, device_on, id_on)     stream_synchronize(device, id)
 *   stream_query(device, id) -> boolean           record_stream(x, device, id)
 *   event_new(device, timing) -> event  event_record(e, device, id)   event_wait(e, device, id)
 *   event_query(e)                      event_synchronize(e)          event_elapsed(from, to) -> milliseconds
 *   pin_memory(x) -> a pinned copy, or x itself where there is nothing to pin for         is_pinned(x)
 */
#include "base/mem.h"
#include "bind/bind.h"
#include "device/alloc.h"
#include "device/driver.h"
#include "op/backend.h"
#include "op/check.h"

static lm_device device_at(lua_State *L, int i, const char *fn) {
  lm_device device = LM_NO_DEVICE;
  lm_status status = lm_read_device(L, LM_STATE(L), i, fn, "device", &device);
  if (status != LM_OK) lm_raise(L, status);
  return device;
}

static int kind_at(lua_State *L, int i, const char *fn) {
  const char *kind = lm_to_text(L, i);
  if (!kind || (strcmp(kind, "cpu") != 0 && strcmp(kind, "cuda") != 0))
    return lm_raise_text(L, "%s: \"cpu\" or \"cuda\" expected, got %s", fn, lm_got(L, LM_STATE(L), i));
  return strcmp(kind, "cpu") == 0 ? LM_CPU : LM_CUDA;
}

static void need(lua_State *L, lm_status status) {
  if (status != LM_OK) lm_raise(L, status);
}

/* ---- devices */
static int bind_device_current(lua_State *L) {
  lua_pushstring(L, lm_device_name(lm_device_current(kind_at(L, 1, "device_current"))));
  return 1;
}

static int bind_device_set_current(lua_State *L) {
  lm_device_set_current(device_at(L, 1, "set_device"));
  return 0;
}

static int bind_with_device(lua_State *L) {
  lm_device device = device_at(L, 1, "device"), before = lm_device_current(LM_DEVICE_KIND(device));
  if (lua_type(L, 2) != LUA_TFUNCTION)
    return lm_raise_text(L, "device: a function expected, got %s: lm.cuda.device(1, function() … end)",
                         lm_got(L, LM_STATE(L), 2));
  lm_device_set_current(device);
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_device_set_current(before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

static int bind_why_none(lua_State *L) {
  int kind = kind_at(L, 1, "device_why_none");
  lua_pushstring(L, lm_device_count(kind) > 0 ? NULL : lm_device_why_none(kind));
  return 1;
}

static void put_property(void *ctx, const lm_property *p) { /* the table is on top */
  lua_State *L = ctx;
  if (p->kind == LM_PROPERTY_TEXT) {
    lua_pushstring(L, p->text);
  } else {
    lua_pushnumber(L, p->number);
  }
  lua_setfield(L, -2, p->name);
}

/* Pushing may raise, so the driver's call is protected from Lua's errors by having the table's room made by Lua: what
 * is left is running out of memory for a string, which LuaJIT raises through C frames of ours that own nothing. */
static int bind_properties(lua_State *L) {
  lm_device device = device_at(L, 1, "device_properties");
  const lm_driver *driver = lm_driver_of(device);
  lua_createtable(L, 0, 128);
  if (driver && driver->properties) need(L, driver->properties(lm_device_physical(device), put_property, L));
  return 1;
}

static int bind_memory(lua_State *L) {
  lm_device device = device_at(L, 1, "mem_get_info");
  const lm_driver *driver = lm_driver_of(device);
  size_t free = 0, total = 0;
  if (!driver || !driver->memory)
    return lm_raise_text(L, "mem_get_info: %s does not tell its memory", lm_device_name(device));
  need(L, driver->memory(lm_device_physical(device), &free, &total));
  lua_pushnumber(L, (double)free);
  lua_pushnumber(L, (double)total);
  return 2;
}

static int bind_peers(lua_State *L) {
  lm_device a = device_at(L, 1, "can_device_access_peer"), b = device_at(L, 2, "can_device_access_peer");
  const lm_driver *driver = lm_driver_of(a);
  int from = lm_device_physical(a), to = lm_device_physical(b);
  bool same = LM_DEVICE_KIND(a) == LM_DEVICE_KIND(b);
  lua_pushboolean(
      L, same && a != b && (from == to || (driver && driver->can_access_peer && driver->can_access_peer(from, to))));
  return 1;
}

static int bind_set_fraction(lua_State *L) {
  double share = 0;
  need(L, lm_read_number(L, LM_STATE(L), 2, "set_per_process_memory_fraction", "fraction", &share));
  if (!(share >= 0 && share <= 1))
    return lm_raise_text(L, "set_per_process_memory_fraction: a share from 0 to 1 expected, got %g", share);
  need(L, lm_memory_set_fraction(device_at(L, 1, "set_per_process_memory_fraction"), share));
  return 0;
}

/* ---- streams */
static lm_stream *stream_at(lua_State *L, int i, const char *fn) { /* device at i, number at i + 1 */
  lm_device device = device_at(L, i, fn);
  int64_t id = 0;
  need(L, lm_read_int(L, LM_STATE(L), i + 1, fn, "stream", &id));
  if (id == 0) lm_stream_current(device); /* has the default stream made */
  lm_stream *s = id >= 0 && id < LM_STREAM_MAX ? lm_stream_by_id(device, (int)id) : NULL;
  if (!s) lm_raise_text(L, "%s: %s has no stream %d", fn, lm_device_name(device), (int)id);
  return s;
}

static int push_stream(lua_State *L, const lm_stream *s) {
  if (!s) return lm_raise(L, LM_E_DEVICE);
  lua_pushinteger(L, s->id);
  return 1;
}

static int bind_stream_current(lua_State *L) {
  return push_stream(L, lm_stream_current(device_at(L, 1, "current_stream")));
}

static int bind_stream_new(lua_State *L) {
  int64_t priority = 0;
  lm_stream *s = NULL;
  lm_device device = device_at(L, 1, "Stream");
  need(L, lm_read_int(L, LM_STATE(L), 2, "Stream", "priority", &priority));
  if (priority < -100 || priority > 100)
    return lm_raise_text(L, "Stream: priority: a small integer expected, 0 or negative for urgent work");
  need(L, lm_stream_new(device, (int)priority, &s));
  return push_stream(L, s);
}

static int bind_stream_priority(lua_State *L) {
  lua_pushinteger(L, stream_at(L, 1, "priority")->priority);
  return 1;
}

static int bind_stream_native(lua_State *L) {
  lua_pushlightuserdata(L, stream_at(L, 1, "native")->native);
  return 1;
}

static int bind_stream_set(lua_State *L) {
  lm_stream_set_current(stream_at(L, 1, "set_stream"));
  return 0;
}

static int bind_with_stream(lua_State *L) {
  lm_stream *s = stream_at(L, 1, "stream"), *before = lm_stream_current(s->device);
  if (lua_type(L, 3) != LUA_TFUNCTION)
    return lm_raise_text(L, "stream: a function expected, got %s: lm.cuda.stream(s, function() … end)",
                         lm_got(L, LM_STATE(L), 3));
  lm_stream_set_current(s);
  int failed = lm_pcall(L, lua_gettop(L) - 3, LUA_MULTRET);
  lm_stream_set_current(before);
  return failed ? lua_error(L) : lua_gettop(L) - 2;
}

static int bind_stream_wait(lua_State *L) {
  lm_stream *waiter = stream_at(L, 1, "wait_stream");
  need(L, lm_stream_wait(waiter, stream_at(L, 3, "wait_stream")));
  return 0;
}

static int bind_stream_synchronize(lua_State *L) {
  need(L, lm_stream_synchronize(stream_at(L, 1, "synchronize")));
  return 0;
}

static int bind_stream_query(lua_State *L) {
  bool done = true;
  need(L, lm_stream_query(stream_at(L, 1, "query"), &done));
  lua_pushboolean(L, done);
  return 1;
}

static int bind_record_stream(lua_State *L) {
  lm_tensor *t = NULL;
  need(L, lm_read_tensor(L, LM_STATE(L), 1, "record_stream", "x", &t));
  lm_stream *s = stream_at(L, 2, "record_stream");
  if (s->device != t->device)
    return lm_raise_text(L, "record_stream: a stream of %s expected, got one of %s", lm_device_name(t->device),
                         lm_device_name(s->device));
  lm_use_note(lm_tensor_used(t), s);
  return 0;
}

/* ---- events */
static int event_gc(lua_State *L) {
  lm_event **e = lua_touserdata(L, 1);
  if (*e) lm_event_free(*e);
  *e = NULL;
  return 0;
}

static const lm_object_type event_type = {"luminary.event", sizeof(lm_event *), event_gc};

static lm_event *event_at(lua_State *L, int i, const char *fn) {
  lm_event **e = lm_to_object(L, i, &event_type);
  if (!e || !*e) lm_raise_text(L, "%s: an event expected, got %s", fn, lm_got(L, LM_STATE(L), i));
  return *e;
}

static int bind_event_new(lua_State *L) {
  lm_device device = device_at(L, 1, "Event");
  lm_event **e = lm_object_new(L, &event_type);
  need(L, lm_event_new(device, lua_toboolean(L, 2), e));
  return 1;
}

static int bind_event_record(lua_State *L) {
  lm_event *e = event_at(L, 1, "record");
  need(L, lm_event_record(e, stream_at(L, 2, "record")));
  return 0;
}

static int bind_event_wait(lua_State *L) {
  lm_event *e = event_at(L, 1, "wait");
  need(L, lm_event_wait(e, stream_at(L, 2, "wait")));
  return 0;
}

static int bind_event_query(lua_State *L) {
  bool done = true;
  need(L, lm_event_query(event_at(L, 1, "query"), &done));
  lua_pushboolean(L, done);
  return 1;
}

static int bind_event_synchronize(lua_State *L) {
  need(L, lm_event_synchronize(event_at(L, 1, "synchronize")));
  return 0;
}

static int bind_event_elapsed(lua_State *L) {
  double milliseconds = 0;
  lm_event *from = event_at(L, 1, "elapsed_time");
  need(L, lm_event_elapsed(from, event_at(L, 2, "elapsed_time"), &milliseconds));
  lua_pushnumber(L, milliseconds);
  return 1;
}

/* ---- pinned host memory */
static lm_status attempt_pin(lua_State *L, lm_lua *s, void *arg) {
  lm_status status;
  lm_tensor **out = arg, *x, *copy = NULL;
  void *memory = NULL;
  TRY(lm_read_tensor(L, s, 1, "pin_memory", "x", &x));
  size_t bytes = lm_nbytes(x);
  TRY(lm_pinned_alloc(bytes > 0 ? bytes : 1, &memory));
  TRY(lm_tensor_foreign((lm_dtype)x->dtype, LM_DEVICE(LM_CPU, 0), x->ndim, x->size, memory, bytes, lm_pinned_free,
                        memory, &copy));
  TRY(lm_copy(x, copy));
  *out = lm_retain(copy);
done:
  lm_release(copy);
  return status;
}

static int bind_pin_memory(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_tensor *x = NULL, *out = NULL;
  need(L, lm_read_tensor(L, s, 1, "pin_memory", "x", &x));
  if (LM_DEVICE_KIND(x->device) != LM_CPU)
    return lm_raise_text(L, "pin_memory: x is on %s; only memory of the host can be pinned", lm_device_name(x->device));
  if (lm_device_count(LM_CUDA) == 0 || lm_is_pinned(x->data)) {
    lua_settop(L, 1);
    return 1;
  }
  lm_pace(L, s);
  lm_box *b = lm_box_new(L);
  lm_status status = lm_attempt_twice(L, s, attempt_pin, &out);
  if (status != LM_OK) return lm_raise(L, status);
  lm_box_fill(s, b, out);
  lm_pace_count(s, out);
  return 1;
}

static int bind_is_pinned(lua_State *L) {
  lm_tensor *x = NULL;
  need(L, lm_read_tensor(L, LM_STATE(L), 1, "is_pinned", "x", &x));
  lua_pushboolean(L, LM_DEVICE_KIND(x->device) == LM_CPU && lm_is_pinned(x->data));
  return 1;
}

const luaL_Reg lm_device_functions[] = {
    {"device_current", bind_device_current},
    {"device_set_current", bind_device_set_current},
    {"with_device", bind_with_device},
    {"device_why_none", bind_why_none},
    {"device_properties", bind_properties},
    {"device_memory", bind_memory},
    {"device_peers", bind_peers},
    {"device_set_fraction", bind_set_fraction},
    {"stream_current", bind_stream_current},
    {"stream_new", bind_stream_new},
    {"stream_priority", bind_stream_priority},
    {"stream_native", bind_stream_native},
    {"stream_set", bind_stream_set},
    {"with_stream", bind_with_stream},
    {"stream_wait", bind_stream_wait},
    {"stream_synchronize", bind_stream_synchronize},
    {"stream_query", bind_stream_query},
    {"record_stream", bind_record_stream},
    {"event_new", bind_event_new},
    {"event_record", bind_event_record},
    {"event_wait", bind_event_wait},
    {"event_query", bind_event_query},
    {"event_synchronize", bind_event_synchronize},
    {"event_elapsed", bind_event_elapsed},
    {"pin_memory", bind_pin_memory},
    {"is_pinned", bind_is_pinned},
    {NULL, NULL},
};
