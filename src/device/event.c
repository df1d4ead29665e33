/* Implements events: marks in a stream, or times on a device without streams, whose work is synchronous. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/graph.h"
#include "device/stream_core.h"

struct lm_event {
  lm_device device;
  bool timing, recorded;
  void *native;      /* the driver's event; NULL without streams, or until recorded */
  double seconds;    /* time of the record on a device without streams */
  lm_graph *capture; /* the stream's capture at the time of the record, or NULL */
};

lm_status lm_event_new(lm_device device, bool timing, lm_event **out) {
  *out = lm_malloc(sizeof **out);
  if (!*out) return LM_E_OOM;
  **out = (lm_event){.device = device, .timing = timing};
  return LM_OK;
}

void lm_event_free(lm_event *e) {
  if (!e) return;
  if (e->native) lm_event_put(e->device, e->timing, e->native);
  lm_free(e);
}

static lm_status check_device(const char *name, const lm_event *e, lm_device device) {
  if (e->device == device) return LM_OK;
  return lm_fail_value(name, "the stream's device", lm_text("the event's device %s", lm_device_name(e->device)),
                       lm_device_name(device));
}

/* Checks that an event recorded in a capture, a node of that graph, is used within the same capture. */
static lm_status check_capture(const char *name, const lm_event *e) {
  if (!e->capture || e->capture == lm_graph_capturing()) return LM_OK;
  return lm_fail(LM_E_STATE,
                 "%s: the event was recorded during a graph capture and is valid only within it; record it again",
                 name);
}

static lm_status check_host(const char *name, const lm_event *e) {
  lm_status status = lm_graph_forbids(name);
  return status == LM_OK ? check_capture(name, e) : status;
}

lm_status lm_event_record(lm_event *e, lm_stream *s) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(s->device);
  NEED(check_device("event.record", e, s->device));
  if (s->native) {
    int ordinal = lm_device_physical(s->device);
    if (!e->native && !(e->native = lm_event_take(e->device, e->timing)))
      NEED(driver->event_create(ordinal, e->timing, &e->native));
    pthread_rwlock_rdlock(&lm_captures);
    status = driver->event_record(ordinal, e->native, s->native);
    e->capture = lm_stream_capture(s);
    pthread_rwlock_unlock(&lm_captures);
    if (status != LM_OK) return status;
  } else {
    NEED(driver->synchronize(lm_device_physical(s->device)));
    e->seconds = lm_seconds();
  }
  e->recorded = true;
  return status;
}

lm_device lm_event_device(const lm_event *e) { return e->device; }

lm_status lm_event_wait(lm_event *e, lm_stream *waiter) {
  if (!e->recorded || !e->native || !waiter->native) return LM_OK;
  if (!e->capture && lm_stream_tag(waiter)) return LM_OK; /* the capture's start waited for the device */
  if (e->capture && e->device != waiter->device) return lm_graph_refuse(e->device, waiter->device);
  lm_status status = check_capture("event.wait", e);
  if (status != LM_OK) return status;
  status = lm_stream_wait_event(waiter, e->native, e->capture);
  if (status != LM_OK) return status;
  lm_stream_touch(waiter);
  return LM_OK;
}

lm_status lm_event_query(lm_event *e, bool *done) {
  *done = true;
  if (!e->recorded || !e->native) return LM_OK;
  NEED(check_host("event.query", e));
  return lm_driver_of(e->device)->event_query(lm_device_physical(e->device), e->native, done);
}

lm_status lm_event_synchronize(lm_event *e) {
  if (!e->recorded || !e->native) return LM_OK;
  NEED(check_host("event.synchronize", e));
  return lm_driver_of(e->device)->event_synchronize(lm_device_physical(e->device), e->native);
}

lm_status lm_event_elapsed(lm_event *from, lm_event *to, double *milliseconds) {
  static const char name[] = "event.elapsed_time";
  *milliseconds = 0;
  NEED(check_device(name, from, to->device));
  if (!from->timing || !to->timing)
    return lm_fail(LM_E_STATE, "%s: both events must be created with {enable_timing = true}", name);
  if (!from->recorded || !to->recorded)
    return lm_fail(LM_E_STATE, "%s: the %s event must be recorded, got one that is not", name,
                   from->recorded ? "second" : "first");
  if (!from->native || !to->native) {
    *milliseconds = (to->seconds - from->seconds) * 1e3;
    return LM_OK;
  }
  bool first = true, second = true;
  NEED(lm_event_query(from, &first));
  NEED(lm_event_query(to, &second));
  if (!first || !second)
    return lm_fail(LM_E_STATE, "%s: the %s event is not complete; call its :synchronize() first", name,
                   first ? "second" : "first");
  return lm_driver_of(from->device)->event_elapsed(from->native, to->native, milliseconds);
}
