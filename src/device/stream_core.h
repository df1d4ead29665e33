/* What the files of streams, events, graphs and of the allocator share. */
#pragma once

#include <pthread.h>

#include "device/driver.h"
#include "device/graph.h"
#include "device/stream.h"

typedef struct lm_stream_state {
  lm_stream s;                          /* first: a lm_stream * is one of these */
  _Atomic uint64_t given;               /* how often work was given to it */
  _Atomic uint64_t done;                /* somebody has waited for all that was given to it up to here */
  _Atomic uint64_t seen[LM_STREAM_MAX]; /* of each of the device's streams: the `given` this one continues after */
  _Atomic(lm_graph *) capture;          /* the graph being captured on it */
} lm_stream_state;

/* lm_used: the writer in the low 6 bits, a bit a stream above; the top bit says that a graph knows the memory, whose
 * replays come and go without a change of the word. */
#define LM_USED_WRITER ((uint64_t)63)
#define LM_USED_GRAPH ((uint64_t)1 << 63)
#define LM_USED_BIT(id) ((uint64_t)1 << (6 + (id)))
#define LM_USED_BITS (~(LM_USED_WRITER | LM_USED_GRAPH))

static inline bool lm_has_streams(const lm_driver *driver) { return driver && driver->stream_create; }

static inline uint64_t lm_stream_given(lm_stream *s) {
  return atomic_load_explicit(&((lm_stream_state *)s)->given, memory_order_acquire);
}
/* The caller has waited for what had been given to the stream by then. */
void lm_stream_done(lm_stream *s, uint64_t given);
bool lm_stream_is_done(lm_stream *s, uint64_t given);
/* `s` continues after all streams of the mask (LM_USED_BIT). */
lm_status lm_stream_wait_mask(lm_stream *s, uint64_t mask);
/* Of every stream of the device that was given work. */
uint64_t lm_stream_mask(lm_device device);
/* The stream the device's graphs were launched on last; NULL: none was. */
lm_stream *lm_stream_launched(lm_device device);
void lm_stream_set_launched(lm_stream *s);
/* LM_USED_GRAPH while a graph is captured on the stream, else 0. */
static inline uint64_t lm_stream_tag(lm_stream *s) {
  return atomic_load_explicit(&((lm_stream_state *)s)->capture, memory_order_relaxed) ? LM_USED_GRAPH : 0;
}
/* The error of a capture on one device that would have to take in work on another. */
lm_status lm_graph_refuse(lm_device captured, lm_device other);
static inline lm_graph *lm_stream_capture(lm_stream *s) { return atomic_load(&((lm_stream_state *)s)->capture); }
/* See the table in stream.h. */
extern pthread_rwlock_t lm_captures;
/* `waiter` continues after the driver's event. `capture`: this thread's, if the event was recorded in it; what waits
 * for a captured stream is captured too. */
lm_status lm_stream_wait_event(lm_stream *waiter, void *event, lm_graph *capture);
/* An event behind what the stream was given so far, to be given back; NULL if another thread captures the stream. */
lm_status lm_stream_mark(lm_stream *s, void **event);
/* Destroys graphs that were let go; nothing while one is captured. */
void lm_graph_drain(void);
/* LM_E_STATE with the name of a call that waits, while this thread captures: nothing of it has run yet. */
lm_status lm_graph_forbids(const char *call);
/* Idle blocks of pinned memory go back to the driver. */
void lm_pinned_empty_cache(void);
/* Events that were let go, to be used again; NULL if there is none. */
void *lm_event_take(lm_device device, bool timing);
void lm_event_put(lm_device device, bool timing, void *native);
