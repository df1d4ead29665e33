#include "device/recorder.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/interned.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/graph.h"
#include "device/stream_core.h"

enum { BLOCK_SPANS = 512 };

/* Relates a device's clock to lm_seconds: `seconds` is the time at which the device reached `event`. */
typedef struct device_clock {
  lm_device device;
  lm_event *event;
  double seconds;
} device_clock;

/* Milliseconds: drivers measure in float, which loses microseconds at greater distances from the clock's event. */
static const double FAR_MS = 1000;

struct lm_recording {
  uint32_t number, flags;
  size_t count, dropped, max_spans, nblocks, capacity;
  lm_span **block; /* BLOCK_SPANS each */
  char where[128];
};

/* Guards `running`, last_number and the running recording. */
LM_MUTEX(lock);
static lm_recording *running;
static uint32_t last_number;
static _Atomic int last_thread;

/* State of this thread. */
static _Thread_local struct {
  int number;
  lm_span *innermost;
  int64_t allocated;
} own;

static int thread_number(void) {
  if (own.number == 0) own.number = atomic_fetch_add(&last_thread, 1) + 1;
  return own.number;
}

const char *lm_span_kind_name(lm_span_kind kind) {
  static const char *const names[LM_SPAN_KINDS] = {
      [LM_SPAN_OP] = "op",         [LM_SPAN_BACKWARD] = "backward",   [LM_SPAN_RANGE] = "range",
      [LM_SPAN_MODULE] = "module", [LM_SPAN_OPTIMIZER] = "optimizer", [LM_SPAN_COLLECTIVE] = "collective",
      [LM_SPAN_WAIT] = "wait",
  };
  return names[kind];
}

/* ---- ranges in the device vendor's tools: NVTX */

const lm_driver *lm_range_driver(void) {
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    const lm_driver *driver = lm_driver_of(LM_DEVICE(kind, 0));
    if (driver && driver->range_push) return driver;
  }
  return NULL;
}

/* ---- device times. Failures are ignored: no span is worth an error. */

/* Records a timing event behind the work of the device's current stream; NULL on a device without streams. */
static lm_event *mark_stream(lm_device device, int *stream) {
  lm_event *e = NULL;
  if (device == LM_NO_DEVICE || !lm_has_streams(lm_driver_of(device)) || lm_graph_capturing()) return NULL;
  lm_saved_error saved; /* the span's own call may have failed */
  lm_error_save(LM_OK, &saved);
  lm_stream *s = lm_stream_current(device);
  if (s && s->native && lm_event_new(device, true, &e) == LM_OK && lm_event_record(e, s) != LM_OK) {
    lm_event_free(e);
    e = NULL;
  }
  if (s) *stream = s->id;
  lm_error_restore(&saved);
  return e;
}

/* Waits for the device, then records an event, which it reaches at once: recorded before, it would be reached only
 * after the queued work. Without an event the device's times are left out. */
static device_clock read_clock(lm_device device) {
  int stream;
  device_clock c = {.device = device};
  lm_device_synchronize(device); /* the next call of the script gets its error */
  lm_saved_error saved;
  lm_error_save(LM_OK, &saved);
  c.event = mark_stream(device, &stream);
  if (c.event && lm_event_synchronize(c.event) != LM_OK) {
    lm_event_free(c.event);
    c.event = NULL;
  }
  c.seconds = (double)lm_nanoseconds() * 1e-9;
  lm_error_restore(&saved);
  return c;
}

/* Computes the device times of a span whose device has finished; expects the latest spans first. */
static void read_times(lm_span *s, device_clock *c) {
  double before = 0, duration = 0;
  if (c->event && s->from && s->to && lm_event_elapsed(s->from, c->event, &before) == LM_OK &&
      lm_event_elapsed(s->from, s->to, &duration) == LM_OK) {
    s->device_start = c->seconds - before * 1e-3;
    s->device_seconds = duration * 1e-3;
    if (before > FAR_MS) {
      lm_event *further = c->event;
      *c = (device_clock){c->device, s->from, s->device_start};
      s->from = further;
    }
  }
  lm_event_free(s->from);
  lm_event_free(s->to);
  s->from = s->to = NULL;
}

/* ---- storing */

static lm_span *block_for(lm_recording *r) {
  size_t at = r->count / BLOCK_SPANS;
  if (at < r->nblocks) return r->block[at];
  if (at == r->capacity) {
    size_t capacity = r->capacity ? 2 * r->capacity : 64;
    lm_span **more = lm_realloc(r->block, capacity * sizeof *more);
    if (!more) return NULL;
    r->block = more;
    r->capacity = capacity;
  }
  lm_span *block = lm_malloc(BLOCK_SPANS * sizeof *block);
  if (block) r->block[r->nblocks++] = block;
  return block;
}

/* Stores a copy of the span; false if it is dropped. */
static bool store(const lm_span *s) {
  LM_LOCKED(&lock);
  lm_recording *r = running;
  bool current = r && r->number == s->recording;
  lm_span *block = current && r->count < r->max_spans ? block_for(r) : NULL;
  if (block) {
    block[r->count++ % BLOCK_SPANS] = *s;
  } else if (current) {
    r->dropped++;
  }
  return block != NULL;
}

static uint32_t number_of_running(void) {
  LM_LOCKED(&lock);
  return running ? running->number : 0;
}

void lm_span_begin(lm_span *s, lm_span_kind kind, const char *name, lm_device device) {
  const lm_driver *driver = lm_traces(LM_TRACE_NVTX) ? lm_range_driver() : NULL;
  *s = (lm_span){
      .kind = (uint8_t)kind, .name = name, .device = device, .line = lm_script_line(), .outer = own.innermost};
  s->thread = thread_number();
  if (own.innermost) s->depth = own.innermost->depth < UINT8_MAX ? own.innermost->depth + 1 : UINT8_MAX;
  s->recording = lm_traces(LM_TRACE_SPANS) ? number_of_running() : 0;
  s->device_seconds = -1;
  s->allocated = own.allocated;
  s->ranged = driver != NULL;
  if (driver) driver->range_push(name);
  own.innermost = s;
  if (s->recording) s->from = mark_stream(device, &s->stream);
  s->start = lm_nanoseconds();
}

void lm_span_end(lm_span *s) {
  s->duration = lm_nanoseconds() - s->start;
  if (s->from) s->to = mark_stream(s->device, &s->stream);
  own.innermost = s->outer;
  s->allocated = own.allocated - s->allocated;
  if (s->outer) {
    s->outer->inside += s->duration;
    s->outer->allocated_inside += s->allocated;
  }
  s->outer = NULL;
  if (s->ranged) lm_range_driver()->range_pop();
  if (s->recording && store(s)) return;
  lm_event_free(s->from);
  lm_event_free(s->to);
}

void lm_span_add(lm_span_kind kind, const char *name, double start, double end) {
  lm_span s = {.kind = (uint8_t)kind, .name = name, .device = LM_NO_DEVICE, .thread = thread_number()};
  s.start = (int64_t)(start * 1e9);
  s.duration = (int64_t)(end * 1e9) - s.start;
  s.inside = s.duration;
  s.device_seconds = -1;
  s.recording = number_of_running();
  if (s.recording) store(&s);
}

const char *lm_span_name(void) { return own.innermost ? own.innermost->name : NULL; }

void lm_span_allocated(int64_t bytes) { own.allocated += bytes; }

/* ---- recordings */

lm_status lm_recording_start(uint32_t flags, size_t max_spans, const char *where, uint32_t *number) {
  LM_FREED lm_recording *r = lm_calloc(1, sizeof *r);
  if (!r) return LM_E_OOM;
  r->flags = flags;
  r->max_spans = max_spans;
  strncpy(r->where, where ? where : "an unknown line", sizeof r->where - 1);
  LM_LOCKED(&lock);
  if (running)
    return lm_fail(LM_E_STATE, "profile: a profiler is running already, since %s; stop it first", running->where);
  if (++last_number == 0) last_number = 1;
  r->number = *number = last_number;
  running = r;
  atomic_fetch_or(&lm_tracing, flags | LM_TRACE_SPANS);
  r = NULL;
  return LM_OK;
}

/* Ends the running recording if `number` is its number or 0; returns it, or NULL. */
static lm_recording *take_running(uint32_t number) {
  LM_LOCKED(&lock);
  lm_recording *r = running && (number == 0 || running->number == number) ? running : NULL;
  if (r) {
    running = NULL;
    atomic_fetch_and(&lm_tracing, ~(r->flags | LM_TRACE_SPANS));
  }
  return r;
}

lm_status lm_recording_stop(lm_recording **out) {
  lm_recording *r = *out = take_running(0);
  if (!r) return lm_fail(LM_E_STATE, "profile: no profiler is running");
  device_clock clock[LM_DEVICE_MAX];
  size_t nclocks = 0;
  for (size_t i = r->count; i-- > 0;) {
    lm_span *s = &r->block[i / BLOCK_SPANS][i % BLOCK_SPANS];
    if (!s->from && !s->to) continue;
    size_t at = 0;
    while (at < nclocks && clock[at].device != s->device) at++;
    if (at == nclocks) clock[nclocks++] = read_clock(s->device);
    read_times(s, &clock[at]);
  }
  for (size_t i = 0; i < nclocks; i++) lm_event_free(clock[i].event);
  return LM_OK;
}

void lm_recording_abandon(uint32_t number) {
  if (number != 0) lm_recording_free(take_running(number));
}

size_t lm_recording_count(const lm_recording *r) { return r->count; }
size_t lm_recording_dropped(const lm_recording *r) { return r->dropped; }
const lm_span *lm_recording_span(const lm_recording *r, size_t i) {
  return &r->block[i / BLOCK_SPANS][i % BLOCK_SPANS];
}

void lm_recording_free(lm_recording *r) {
  if (!r) return;
  for (size_t i = 0; i < r->count; i++) {
    lm_event_free(r->block[i / BLOCK_SPANS][i % BLOCK_SPANS].from);
    lm_event_free(r->block[i / BLOCK_SPANS][i % BLOCK_SPANS].to);
  }
  for (size_t i = 0; i < r->nblocks; i++) lm_free(r->block[i]);
  lm_free(r->block);
  lm_free(r);
}
