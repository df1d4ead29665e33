/* Records spans of the core's work for the profiler, and lists live memory by its origin:
 *
 *   recording_start{lines, shapes, nvtx, max_spans}     recording_stop() -> recording
 *   recording:count()  recording:dropped()
 *   recording:span(i) -> name, kind, line, shapes, thread, depth, start, seconds, self seconds, bytes allocated, self
 *                        bytes, flops, bytes of a collective, device, stream, start on the device, seconds there
 *   is_recording()   record_function(name, f, ...)  record_kind(kind, name, f, ...)   record_span(name, start, end)
 *   range_push(name)  range_pop()  range_mark(name)     of the vendor's tools (NVTX); return whether these exist
 *   memory_history(on)  live_memory(f) -> the number not recorded   calls f(line, op, device, bytes, seconds) for each
 */
#include "device/recorder.h"

#include "base/interned.h"
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "device/driver.h"
#include "tensor/memory_history.h"

LM_LIST(lm_methods_of_recording);
LM_HELD_TYPE(recording, lm_recording, lm_recording_free, "luminary.recording", "a recording", LM_METHODS_OF(recording))

LM_OBJECT_METHOD(recording, count, "count", (recording, r)) {
  return lm_return_number(L, (double)lm_recording_count(r));
}
LM_OBJECT_METHOD(recording, dropped, "dropped", (recording, r)) {
  return lm_return_number(L, (double)lm_recording_dropped(r));
}

LM_OBJECT_METHOD(recording, span, "span", (recording, r), (int, i)) {
  int64_t n = (int64_t)lm_recording_count(r);
  if (i < 1 || i > n) return lm_raise(L, lm_fail_int("span", "i", lm_text("from 1 to %lld", (long long)n), i));
  const lm_span *s = lm_recording_span(r, (size_t)i - 1);
  luaL_checkstack(L, 20, "span");
  lua_pushstring(L, s->name);
  lua_pushstring(L, lm_span_kind_name((lm_span_kind)s->kind));
  lua_pushstring(L, s->line);
  lua_pushstring(L, s->shapes);
  lua_pushinteger(L, s->thread);
  lua_pushinteger(L, s->depth);
  lua_pushnumber(L, (double)s->start * 1e-9);
  lua_pushnumber(L, (double)s->duration * 1e-9);
  lua_pushnumber(L, (double)(s->duration - s->inside) * 1e-9);
  lua_pushnumber(L, (double)s->allocated);
  lua_pushnumber(L, (double)(s->allocated - s->allocated_inside));
  lua_pushnumber(L, s->flops);
  lua_pushnumber(L, (double)s->bytes);
  lua_pushstring(L, s->device == LM_NO_DEVICE ? NULL : lm_device_name(s->device));
  if (s->device_seconds < 0) return 14;
  lua_pushinteger(L, s->stream);
  lua_pushnumber(L, s->device_start);
  lua_pushnumber(L, s->device_seconds);
  return 17;
}

/* Stops a running recording when it is collected, since nobody else could once its profiler or Lua state is gone. */
static void close_running(void *object) {
  uint32_t *number = object;
  lm_recording_abandon(*number);
  *number = 0;
}
static const lm_object_type running_type = {
    "luminary.running_recording", sizeof(uint32_t), close_running, "a recording that runs", NULL, NULL};

LM_FUNCTION(recording_start) {
  bool lines = true, shapes = false, nvtx = false;
  int64_t max_spans = 1000000;
  lm_need(L, LM_READ_OPTIONS(L, LM_STATE(L), 1, "profile", {"lines", LM_ARG_B, &lines}, {"shapes", LM_ARG_B, &shapes},
                             {"nvtx", LM_ARG_B, &nvtx}, {"max_spans", LM_ARG_I, &max_spans}));
  uint32_t flags = (lines ? LM_TRACE_LINES : 0) | (shapes ? LM_TRACE_SHAPES : 0) | (nvtx ? LM_TRACE_NVTX : 0);
  lm_push_site(L);
  const char *where = lua_tostring(L, -1);
  uint32_t *number = lm_object_new(L, &running_type);
  lm_need(L, lm_recording_start(flags, (size_t)max_spans, *where ? where : NULL, number));
  lm_lines_changed(LM_STATE(L));
  return 1;
}

LM_FUNCTION(recording_stop) {
  lm_need(L, lm_recording_stop(lm_object_new(L, &recording_type)));
  lm_lines_changed(LM_STATE(L));
  return 1;
}

LM_FUNCTION(is_recording) { return lm_return_bool(L, lm_traces(LM_TRACE_CALLS)); }

/* ---- ranges: functions that run f, since a range that is never ended would contain all later spans */

static int run_in_span(lua_State *L, lm_span_kind kind, int at, const char *fn) {
  const char *name = lm_need_text(L, at, fn, "name");
  lm_need_function(L, at + 1, fn, "name, ");
  int top = lua_gettop(L);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  const char *kept = traced ? lm_interned(name) : NULL;
  if (traced) lm_note_line(L, LM_STATE(L));
  if (traced) lm_span_begin(&span, kind, kept ? kept : "a range", LM_NO_DEVICE);
  int failed = lm_pcall(L, top - at - 1, LUA_MULTRET);
  if (traced) lm_span_end(&span);
  return failed ? lua_error(L) : lua_gettop(L) - at;
}

LM_FUNCTION(record_function) { return run_in_span(L, LM_SPAN_RANGE, 1, "record_function"); }

LM_FUNCTION(record_kind) {
  const char *name = lm_need_text(L, 1, "record_kind", "kind");
  int kind = 0;
  while (kind < LM_SPAN_KINDS && strcmp(lm_span_kind_name((lm_span_kind)kind), name) != 0) kind++;
  if (kind == LM_SPAN_KINDS) return lm_raise(L, lm_fail_value("record_kind", "kind", "a kind of spans", name));
  return run_in_span(L, (lm_span_kind)kind, 2, "record_kind");
}

LM_FUNCTION(record_span, (text, name), (number, start), (number, end)) {
  const char *kept = lm_interned(name);
  if (kept) lm_span_add(LM_SPAN_RANGE, kept, start, end);
  return 0;
}

LM_FUNCTION(range_push, (text, name)) {
  const lm_driver *driver = lm_range_driver();
  if (driver) driver->range_push(name);
  return lm_return_bool(L, driver != NULL);
}

LM_FUNCTION(range_pop) {
  const lm_driver *driver = lm_range_driver();
  if (driver) driver->range_pop();
  return lm_return_bool(L, driver != NULL);
}

LM_FUNCTION_AS(range_mark, "mark", (text, name)) {
  const lm_driver *driver = lm_range_driver();
  if (driver) driver->range_mark(name);
  return lm_return_bool(L, driver != NULL);
}

/* ---- live memory */

LM_FUNCTION_AS(memory_history, "record_memory_history", (boolean, on)) {
  if (on != lm_memory_history_on()) lm_memory_history_set(on);
  lm_lines_changed(LM_STATE(L));
  return 0;
}

LM_FUNCTION(is_memory_history_on) { return lm_return_bool(L, lm_memory_history_on()); }

LM_HELD_TYPE(live, lm_live_memory, lm_free, "luminary.live_memory", "a list of memory", NULL, NULL)

LM_FUNCTION(live_memory) {
  lm_need_function(L, 1, "live_memory", "");
  lua_settop(L, 1);
  lm_live_memory **held = lm_object_new(L, &live_type); /* the collector frees it if f raises */
  size_t n, missed;
  lm_need(L, lm_memory_history(&n, held, &missed));
  for (size_t i = 0; i < n; i++) {
    const lm_live_memory *m = &(*held)[i];
    lua_pushvalue(L, 1);
    lua_pushstring(L, m->line);
    lua_pushstring(L, m->op);
    lua_pushstring(L, lm_device_name(m->device));
    lua_pushnumber(L, (double)m->bytes);
    lua_pushnumber(L, m->seconds);
    lua_call(L, 5, 0);
  }
  live_type.close(held);
  return lm_return_number(L, (double)missed);
}
