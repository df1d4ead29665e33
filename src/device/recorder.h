/* Records what the core does between start and stop as spans of time. The process has one recording at a time, with
 * spans of all its threads. A span begins and ends on one thread, innermost first, and is stored at its end. On devices
 * with streams, events measure the device's time; nothing waits for them before the recording stops. Spans that do not
 * fit in memory are only counted. */
#pragma once

#include "base/log.h"
#include "device/device.h"

typedef enum lm_span_kind {
  LM_SPAN_OP,
  LM_SPAN_BACKWARD, /* the backward pass of a recorded op */
  LM_SPAN_RANGE,    /* a range that the script names, or a step */
  LM_SPAN_MODULE,
  LM_SPAN_OPTIMIZER,
  LM_SPAN_COLLECTIVE,
  LM_SPAN_WAIT, /* waiting for data or for other work */
  LM_SPAN_KINDS
} lm_span_kind;

struct lm_event;

typedef struct lm_span {
  const char *name, *line, *shapes;    /* interned or static; line and shapes may be NULL */
  uint8_t kind, depth;                 /* depth: number of enclosing spans on its thread */
  lm_device device;                    /* LM_NO_DEVICE: no device time */
  int thread, stream;                  /* stream: its id on the device */
  int64_t start, duration, inside;     /* nanoseconds of lm_seconds; inside: spent in nested spans */
  int64_t allocated, allocated_inside; /* bytes of tensors allocated minus freed by this thread; in nested spans */
  int64_t bytes;                       /* bytes that a collective receives */
  double flops;
  double device_start, device_seconds; /* seconds; device_seconds < 0: not measured */
  /* Used while the span is open: */
  struct lm_span *outer;
  uint32_t recording; /* number of its recording; 0: none */
  bool ranged;        /* true if an NVTX range is open for it */
  struct lm_event *from, *to;
} lm_span;

/* Opens a span while any tracing is on; it is stored only if LM_TRACE_SPANS is on. The caller may set flops, bytes and
 * shapes before the end. `line` is this thread's script line. */
LM_API void lm_span_begin(lm_span *s, lm_span_kind kind, const char *name, lm_device device);
LM_API void lm_span_end(lm_span *s);
/* Adds a completed span, for spans that are not the last begun. Times are seconds of lm_seconds. */
LM_API void lm_span_add(lm_span_kind kind, const char *name, double start, double end);

/* Returns the name of this thread's innermost open span; NULL if there is none. */
const char *lm_span_name(void);
/* Counts bytes of tensor memory that this thread allocated, or freed, if negative. */
void lm_span_allocated(int64_t bytes);

/* Returns the driver that marks ranges for its vendor's tools, or NULL. */
LM_API const struct lm_driver *lm_range_driver(void);

typedef struct lm_recording lm_recording;
/* Starts a recording and returns its number. flags: of LM_TRACE_LINES, LM_TRACE_SHAPES and LM_TRACE_NVTX. Keeps at most
 * max_spans. where: the script's line, for the error of a second start. LM_E_STATE if one is running. */
LM_API lm_status lm_recording_start(uint32_t flags, size_t max_spans, const char *where, uint32_t *number);
/* Stops the recording; waits for devices that were measured. Open spans are left out. LM_E_STATE if none runs. */
LM_API lm_status lm_recording_stop(lm_recording **out);
/* Stops and frees the recording of that number if it is still running. Waits for no device. */
LM_API void lm_recording_abandon(uint32_t number);
LM_API size_t lm_recording_count(const lm_recording *r);
LM_API size_t lm_recording_dropped(const lm_recording *r);
LM_API const lm_span *lm_recording_span(const lm_recording *r, size_t i);
LM_API void lm_recording_free(lm_recording *r);
LM_API const char *lm_span_kind_name(lm_span_kind kind);
