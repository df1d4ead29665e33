/* The recorder: what the core does from start to stop, as spans of time. One recording at a time in the process; spans
 * of all its threads. A span is begun and ended on one thread, the last begun first, and is stored when it ends. On
 * devices with streams, events in the stream say how long the device took: nothing is waited for before the end of the
 * recording. Where there is no memory for more spans, they are counted. */
#pragma once

#include "base/log.h"
#include "device/device.h"

typedef enum lm_span_kind {
  LM_SPAN_OP,
  LM_SPAN_BACKWARD, /* of a recorded op */
  LM_SPAN_RANGE,    /* of the script, or of a step */
  LM_SPAN_MODULE,
  LM_SPAN_OPTIMIZER,
  LM_SPAN_COLLECTIVE,
  LM_SPAN_WAIT, /* for data, or for what is done elsewhere */
  LM_SPAN_KINDS
} lm_span_kind;

struct lm_event;

typedef struct lm_span {
  const char *name, *line, *shapes;    /* interned or static; line and shapes may be NULL */
  uint8_t kind, depth;                 /* depth: in how many others of its thread it lies */
  lm_device device;                    /* LM_NO_DEVICE: no device's time */
  int thread, stream;                  /* stream: its number on the device */
  int64_t start, duration, inside;     /* nanoseconds of lm_seconds; inside: in spans within this one */
  int64_t allocated, allocated_inside; /* bytes of tensors allocated less those freed, by this thread */
  int64_t bytes;                       /* that a collective gets */
  double flops;
  double device_start, device_seconds; /* device_seconds < 0: not measured */
  /* While it is open: */
  struct lm_span *outer;
  uint32_t recording; /* its number; 0: of none */
  bool ranged;        /* as a range of NVTX */
  struct lm_event *from, *to;
} lm_span;

/* Where spans are traced at all. It is stored if LM_TRACE_SPANS is on. The caller may set flops, bytes and shapes
 * before its end. The line is the thread's. */
LM_API void lm_span_begin(lm_span *s, lm_span_kind kind, const char *name, lm_device device);
LM_API void lm_span_end(lm_span *s);
/* One that is over: for spans that are not the last begun. Seconds of lm_seconds. */
LM_API void lm_span_add(lm_span_kind kind, const char *name, double start, double end);

/* Of the innermost span that is open on this thread; NULL for none. */
LM_API const char *lm_span_name(void);
/* Of the tensors' memory: bytes that this thread allocated, or freed, if negative. */
LM_API void lm_span_allocated(int64_t bytes);

typedef struct lm_recording lm_recording;
/* flags: what to note beside times, of LM_TRACE_LINES, LM_TRACE_SHAPES and LM_TRACE_NVTX. At most max_spans are kept.
 * where: the script's line, for the message of a second one. number: of this recording. LM_E_STATE if one runs. */
LM_API lm_status lm_recording_start(uint32_t flags, size_t max_spans, const char *where, uint32_t *number);
/* Waits for devices whose time was measured. Spans that are open are not in it. LM_E_STATE if none runs. */
LM_API lm_status lm_recording_stop(lm_recording **out);
/* Stops and frees the recording of that number, if it still runs. Waits for no device. */
LM_API void lm_recording_abandon(uint32_t number);
LM_API size_t lm_recording_count(const lm_recording *r);
LM_API size_t lm_recording_dropped(const lm_recording *r);
LM_API const lm_span *lm_recording_span(const lm_recording *r, size_t i);
LM_API void lm_recording_free(lm_recording *r);
LM_API const char *lm_span_kind_name(lm_span_kind kind);
