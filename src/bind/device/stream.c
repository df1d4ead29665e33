/* Adds streams and events. Streams are named by device and number, and live as long as the process.
 *
 *   streams_own       makes this thread use streams of its own
 *   streams_finish    waits for them; returns an error found by their kernels, or nil
 *   stream_native     lightuserdata
 *   event_elapsed     milliseconds
 */
#include "base/message.h"
#include "bind/bind.h"

lm_stream *lm_need_stream(lua_State *L, int i, const char *fn, const char *arg) {
  lm_device device = lm_need_device(L, i, fn, "device");
  int64_t id = lm_need_int(L, i + 1, fn, arg);
  lm_need(L, lm_settle());                /* calls so far give their work to the current stream */
  if (id == 0) lm_stream_current(device); /* makes the default stream */
  lm_stream *s = id >= 0 && id < LM_STREAM_MAX ? lm_stream_by_id(device, (int)id) : NULL;
  if (!s) lm_raise(L, lm_fail_int(fn, arg, lm_text("the number of a stream of %s", lm_device_name(device)), id));
  return s;
}

static int push_stream(lua_State *L, const lm_stream *s) {
  if (!s) return lm_raise(L, LM_E_DEVICE);
  return lm_return_int(L, s->id);
}

LM_FUNCTION_AS(stream_current, "current_stream", (device, device)) { return push_stream(L, lm_stream_current(device)); }

LM_FUNCTION_AS(stream_new, "Stream", (device, device), (int, priority)) {
  lm_stream *s = NULL;
  if (priority < -100 || priority > 100)
    return lm_raise(L, lm_remedy(lm_fail_int("Stream", "priority", "from -100 to 100", priority),
                                 "0 is the default, negative is urgent"));
  lm_need(L, lm_stream_new(device, (int)priority, &s));
  return push_stream(L, s);
}

/* A stream takes two positions, its device and its number. */
LM_FUNCTION_AS(stream_priority, "priority", (stream, stream), (any, id)) { return lm_return_int(L, stream->priority); }

LM_FUNCTION_AS(stream_native, "native", (stream, stream), (any, id)) {
  lua_pushlightuserdata(L, stream->native);
  return 1;
}

LM_FUNCTION_AS(stream_set, "set_stream", (stream, stream), (any, id)) {
  lm_stream_set_current(stream);
  return 0;
}

LM_FUNCTION(streams_own) { return lm_return(L, lm_streams_own(), 0); }

LM_FUNCTION(streams_finish) { return lm_streams_finish() == LM_OK ? 0 : lm_return_text(L, lm_error()); }

LM_FUNCTION(with_stream) {
  lm_stream *s = lm_need_stream(L, 1, "stream", "stream"), *before = lm_stream_current(s->device);
  lm_need_function(L, 3, "cuda.stream", "s, ");
  lm_stream_set_current(s);
  int failed = lm_pcall(L, lua_gettop(L) - 3, LUA_MULTRET);
  lm_status status = lm_settle();
  lm_stream_set_current(before);
  return failed ? lua_error(L) : lm_return(L, status, lua_gettop(L) - 2);
}

LM_FUNCTION_AS(stream_wait, "wait_stream", (stream, stream), (any, id), (stream, on), (any, id_on)) {
  return lm_return(L, lm_stream_wait(stream, on), 0);
}

LM_FUNCTION_AS(stream_synchronize, "synchronize", (stream, stream), (any, id)) {
  return lm_return(L, lm_stream_synchronize(stream), 0);
}

LM_FUNCTION_AS(stream_query, "query", (stream, stream), (any, id)) {
  bool done = true;
  lm_need(L, lm_stream_query(stream, &done));
  return lm_return_bool(L, done);
}

LM_FUNCTION(record_stream, (tensor, x), (stream, stream), (any, id)) {
  if (stream->device != x->device)
    return lm_raise(L, lm_fail_value("record_stream", "stream", lm_text("of x's device %s", lm_device_name(x->device)),
                                     lm_text("one of %s", lm_device_name(stream->device))));
  lm_use_note(lm_tensor_used(x), stream);
  return 0;
}

/* ---- events */
LM_HELD_TYPE(event, lm_event, lm_event_free, "luminary.event", "an event", NULL, NULL)

LM_FUNCTION_AS(event_new, "Event", (device, device), (flag, timing)) {
  lm_event **e = lm_object_new(L, &event_type);
  return lm_return(L, lm_event_new(device, timing, e), 1);
}

LM_FUNCTION_AS(event_record, "record", (event, e), (stream, stream), (any, id)) {
  return lm_return(L, lm_event_record(e, stream), 0);
}

LM_FUNCTION_AS(event_wait, "wait", (event, e), (stream, stream), (any, id)) {
  return lm_return(L, lm_event_wait(e, stream), 0);
}

LM_FUNCTION_AS(event_query, "query", (event, e)) {
  bool done = true;
  lm_need(L, lm_event_query(e, &done));
  return lm_return_bool(L, done);
}

LM_FUNCTION_AS(event_synchronize, "synchronize", (event, e)) { return lm_return(L, lm_event_synchronize(e), 0); }

LM_FUNCTION_AS(event_elapsed, "elapsed_time", (event, from), (event, to)) {
  double milliseconds = 0;
  lm_need(L, lm_event_elapsed(from, to, &milliseconds));
  return lm_return_number(L, milliseconds);
}
