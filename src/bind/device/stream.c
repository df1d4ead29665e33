/* Adds streams and events. Streams are named by device and number, and live as long as the process.
 *
 *   stream_current(device) -> id        stream_new(device, priority) -> id      stream_priority(device, id)
 *   with_stream(device, id, f, ...)     stream_set(device, id)
 *   stream_native(device, id) -> lightuserdata
 *   streams_own()     makes this thread use streams of its own
 *   streams_finish()  waits for them; returns an error found by their kernels, or nil
 *   stream_wait(device, id, device_on, id_on)     stream_synchronize(device, id)
 *   stream_query(device, id) -> boolean           record_stream(x, device, id)
 *   event_new(device, timing) -> event  event_record(e, device, id)   event_wait(e, device, id)
 *   event_query(e)                      event_synchronize(e)          event_elapsed(from, to) -> milliseconds
 */
#include "base/message.h"
#include "bind/bind.h"

lm_stream *lm_need_stream(lua_State *L, int i, const char *fn) {
  lm_device device = lm_need_device(L, i, fn);
  int64_t id = lm_need_int(L, i + 1, fn, "stream");
  if (id == 0) lm_stream_current(device); /* makes the default stream */
  lm_stream *s = id >= 0 && id < LM_STREAM_MAX ? lm_stream_by_id(device, (int)id) : NULL;
  if (!s) lm_raise(L, lm_fail_int(fn, "stream", lm_text("the number of a stream of %s", lm_device_name(device)), id));
  return s;
}

static int push_stream(lua_State *L, const lm_stream *s) {
  if (!s) return lm_raise(L, LM_E_DEVICE);
  return lm_return_int(L, s->id);
}

LM_FUNCTION(stream_current) { return push_stream(L, lm_stream_current(lm_need_device(L, 1, "current_stream"))); }

LM_FUNCTION(stream_new) {
  lm_stream *s = NULL;
  lm_device device = lm_need_device(L, 1, "Stream");
  int64_t priority = lm_need_int(L, 2, "Stream", "priority");
  if (priority < -100 || priority > 100)
    return lm_raise(L, lm_remedy(lm_fail_int("Stream", "priority", "from -100 to 100", priority),
                                 "0 is the default, negative is urgent"));
  lm_need(L, lm_stream_new(device, (int)priority, &s));
  return push_stream(L, s);
}

LM_FUNCTION(stream_priority) { return lm_return_int(L, lm_need_stream(L, 1, "priority")->priority); }

LM_FUNCTION(stream_native) {
  lua_pushlightuserdata(L, lm_need_stream(L, 1, "native")->native);
  return 1;
}

LM_FUNCTION(stream_set) {
  lm_stream_set_current(lm_need_stream(L, 1, "set_stream"));
  return 0;
}

LM_FUNCTION(streams_own) { return lm_return(L, lm_streams_own(), 0); }

LM_FUNCTION(streams_finish) { return lm_streams_finish() == LM_OK ? 0 : lm_return_text(L, lm_error()); }

LM_FUNCTION(with_stream) {
  lm_stream *s = lm_need_stream(L, 1, "stream"), *before = lm_stream_current(s->device);
  lm_need_function(L, 3, "cuda.stream", "s, ");
  lm_stream_set_current(s);
  int failed = lm_pcall(L, lua_gettop(L) - 3, LUA_MULTRET);
  lm_stream_set_current(before);
  return failed ? lua_error(L) : lua_gettop(L) - 2;
}

LM_FUNCTION(stream_wait) {
  lm_stream *waiter = lm_need_stream(L, 1, "wait_stream");
  return lm_return(L, lm_stream_wait(waiter, lm_need_stream(L, 3, "wait_stream")), 0);
}

LM_FUNCTION(stream_synchronize) { return lm_return(L, lm_stream_synchronize(lm_need_stream(L, 1, "synchronize")), 0); }

LM_FUNCTION(stream_query) {
  bool done = true;
  lm_need(L, lm_stream_query(lm_need_stream(L, 1, "query"), &done));
  return lm_return_bool(L, done);
}

LM_FUNCTION(record_stream) {
  lm_tensor *t = lm_need_tensor(L, 1, "record_stream", "x");
  lm_stream *s = lm_need_stream(L, 2, "record_stream");
  if (s->device != t->device)
    return lm_raise(L, lm_fail_value("record_stream", "stream", lm_text("of x's device %s", lm_device_name(t->device)),
                                     lm_text("one of %s", lm_device_name(s->device))));
  lm_use_note(lm_tensor_used(t), s);
  return 0;
}

/* ---- events */
LM_HELD_TYPE(event_type, lm_event, lm_event_free, "luminary.event", "an event", NULL);

static lm_event *event_at(lua_State *L, int i, const char *fn) { return lm_need_held(L, i, &event_type, fn); }

LM_FUNCTION(event_new) {
  lm_device device = lm_need_device(L, 1, "Event");
  lm_event **e = lm_object_new(L, &event_type);
  return lm_return(L, lm_event_new(device, lua_toboolean(L, 2), e), 1);
}

LM_FUNCTION(event_record) {
  lm_event *e = event_at(L, 1, "record");
  return lm_return(L, lm_event_record(e, lm_need_stream(L, 2, "record")), 0);
}

LM_FUNCTION(event_wait) {
  lm_event *e = event_at(L, 1, "wait");
  return lm_return(L, lm_event_wait(e, lm_need_stream(L, 2, "wait")), 0);
}

LM_FUNCTION(event_query) {
  bool done = true;
  lm_need(L, lm_event_query(event_at(L, 1, "query"), &done));
  return lm_return_bool(L, done);
}

LM_FUNCTION(event_synchronize) { return lm_return(L, lm_event_synchronize(event_at(L, 1, "synchronize")), 0); }

LM_FUNCTION(event_elapsed) {
  double milliseconds = 0;
  lm_event *from = event_at(L, 1, "elapsed_time");
  lm_need(L, lm_event_elapsed(from, event_at(L, 2, "elapsed_time"), &milliseconds));
  return lm_return_number(L, milliseconds);
}
