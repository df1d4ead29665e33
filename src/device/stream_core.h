/* Shares internals between streams, events, graphs and the allocators. */
#pragma once

#include <pthread.h>

#include "device/driver.h"
#include "device/graph.h"
#include "device/stream.h"

typedef struct lm_stream_state {
  lm_stream s;                          /* first: a lm_stream * is one of these */
  _Atomic uint64_t given;               /* number of times it was given work */
  _Atomic uint64_t done;                /* the `given` count up to which its work is known to be done */
  _Atomic uint64_t seen[LM_STREAM_MAX]; /* per stream of the device: the `given` count that this one is ordered after */
  _Atomic(lm_graph *) capture;          /* the graph being captured on it */
} lm_stream_state;

/* Layout of lm_used: the writer in the low 6 bits, a bit for each stream above. The top bit marks a graph's memory,
 * whose replays do not change the word. */
#define LM_USED_WRITER ((uint64_t)63)
#define LM_USED_GRAPH ((uint64_t)1 << 63)
#define LM_USED_BIT(id) ((uint64_t)1 << (6 + (id)))
#define LM_USED_BITS (~(LM_USED_WRITER | LM_USED_GRAPH))

static inline bool lm_has_streams(const lm_driver *driver) { return driver && driver->stream_create; }

static inline uint64_t lm_stream_given(lm_stream *s) {
  return atomic_load_explicit(&((lm_stream_state *)s)->given, memory_order_acquire);
}
/* Records that the stream's work up to `given` is done. */
void lm_stream_done(lm_stream *s, uint64_t given);
bool lm_stream_is_done(lm_stream *s, uint64_t given);
/* Makes `s` wait for all streams of the mask (LM_USED_BIT). */
lm_status lm_stream_wait_mask(lm_stream *s, uint64_t mask);
/* Returns the mask of the device's streams that were given work. */
uint64_t lm_stream_mask(lm_device device);
/* Returns the stream of the device's last graph launch, or NULL. */
lm_stream *lm_stream_launched(lm_device device);
void lm_stream_set_launched(lm_stream *s);
/* Returns LM_USED_GRAPH while a graph is captured on the stream, else 0. */
static inline uint64_t lm_stream_tag(lm_stream *s) {
  return atomic_load_explicit(&((lm_stream_state *)s)->capture, memory_order_relaxed) ? LM_USED_GRAPH : 0;
}
/* Returns the error for work on `other` during a capture on `captured`. */
lm_status lm_graph_refuse(lm_device captured, lm_device other);
static inline lm_graph *lm_stream_capture(lm_stream *s) { return atomic_load(&((lm_stream_state *)s)->capture); }
/* Guards the captures of streams; graph.h has the table. */
extern pthread_rwlock_t lm_captures;
/* Begin and end this thread's capture; lm_captures is locked for writing while one begins. */
void lm_capture_enter(lm_graph *g);
void lm_capture_leave(void);
/* Makes `waiter` wait for the driver's event. `capture` is this thread's if the event was recorded in it, else NULL; a
 * stream that waits for a captured one becomes captured too. */
lm_status lm_stream_wait_event(lm_stream *waiter, void *event, lm_graph *capture);
/* Records an event behind the stream's work; free it by lm_event_put. NULL if another thread captures the stream. */
lm_status lm_stream_mark(lm_stream *s, void **event);
/* Destroys freed graphs, unless this thread is capturing. */
void lm_graph_drain(void);
/* Returns LM_E_STATE, naming a call that waits, while this thread captures: none of that work has run yet. */
lm_status lm_graph_forbids(const char *call);
/* Returns idle blocks of pinned memory to the driver. */
void lm_pinned_empty_cache(void);
/* Reuse the driver's events: take returns a spare one, or NULL; put makes one a spare. */
void *lm_event_take(lm_device device, bool timing);
void lm_event_put(lm_device device, bool timing, void *native);
