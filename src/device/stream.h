/* Streams: queues of work on a device. A thread has a current stream on each device; every op goes to it.
 * A storage knows the streams that use it, so that work on one waits for what another has written (lm_use_*).
 * Devices whose driver has no streams have the one, on which all work is done at once; nothing here costs them
 * anything. */
#ifndef LM_DEVICE_STREAM_H
#define LM_DEVICE_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"

enum { LM_STREAM_MAX = 56 }; /* a device; they share a word with the last writer (lm_used) */

/* Made once, kept for good: pointers to them stay valid. Fields are read-only for others. */
typedef struct lm_stream {
  lm_device device;
  uint8_t id; /* 0: the device's default */
  int priority;
  void *native; /* the driver's; NULL where it has no streams */
} lm_stream;

/* This thread's current stream on the device: the default one until set. NULL with a message if the driver fails. */
LM_API lm_stream *lm_stream_current(lm_device device);
LM_API void lm_stream_set_current(lm_stream *s);
/* A new stream, or in turn one of those there are once LM_STREAM_MAX were made. 0 is the normal priority; negative ones
 * are served first. */
LM_API lm_status lm_stream_new(lm_device device, int priority, lm_stream **out);
/* The device's stream of that number, if it was made. */
LM_API lm_stream *lm_stream_by_id(lm_device device, int id);
/* `waiter` goes on only after what `on` has been given so far. Does nothing if it does so already. */
LM_API lm_status lm_stream_wait(lm_stream *waiter, lm_stream *on);
/* The caller waits; errors that kernels on the stream found are returned. */
LM_API lm_status lm_stream_synchronize(lm_stream *s);
LM_API lm_status lm_stream_query(lm_stream *s, bool *done);
/* The same for all of the device's streams. */
LM_API lm_status lm_device_synchronize(lm_device device);
/* Something was given to the stream: lm_stream_wait has to look again. */
LM_API void lm_stream_touch(lm_stream *s);

/* Who uses a block of memory: 0, or its last writer's id in the low 6 bits, bit 6 + id for each stream that is ordered
 * after that write, and the top bit if a captured graph uses it too. Only one device's streams are counted: its own. */
typedef _Atomic uint64_t lm_used;

/* Before the stream reads (writes) what `used` stands for: waits for the writer (for all users), and is noted. */
LM_API lm_status lm_use_read(lm_used *used, lm_stream *s);
LM_API lm_status lm_use_write(lm_used *used, lm_stream *s);
/* Noted only: record_stream. */
LM_API void lm_use_note(lm_used *used, lm_stream *s);

/* For threads that give no work: *over tells whether all that the word names is done. Streams seen to be done are taken
 * out of *used. *mark is NULL before the first call, and kept from call to call until all is over. */
LM_API lm_status lm_use_is_over(lm_device device, uint64_t *used, void **mark, bool *over);
/* The stream goes on after what another process's stream was given before it recorded the event. */
LM_API lm_status lm_stream_wait_foreign(lm_stream *waiter, void *event);

/* ---- events */
typedef struct lm_event lm_event;
LM_API lm_status lm_event_new(lm_device device, bool timing, lm_event **out);
LM_API void lm_event_free(lm_event *e);
LM_API lm_status lm_event_record(lm_event *e, lm_stream *s);
/* An event never recorded is done and waited for by nobody. */
LM_API lm_status lm_event_wait(lm_event *e, lm_stream *waiter);
LM_API lm_status lm_event_query(lm_event *e, bool *done);
LM_API lm_status lm_event_synchronize(lm_event *e);
/* Milliseconds between two recorded timing events of one device. Synchronous devices measure wall time. */
LM_API lm_status lm_event_elapsed(lm_event *from, lm_event *to, double *milliseconds);

/* ---- capture: what a thread enqueues between begin and end becomes a graph instead of running. Memory asked for
 * meanwhile comes from the graph's own arena, which lives as long as the graph. One capture at a time a thread.
 *
 * A stream that is    becomes    by
 *   idle               running    work given to it, after which lm_stream_touch is called; any thread
 *   running            idle       the device, once all is done; who waited for that calls lm_stream_done
 *   idle or running    captured   lm_graph_begin, which waits for the whole device first; the capturing thread
 *   idle or running    captured   waiting for a stream or an event of the capture; the capturing thread
 *   captured           idle       lm_graph_end, whether the graph is kept or thrown away; the capturing thread
 *
 * lm_captures is held for writing where a stream becomes captured, and for reading by whoever records an event on it.
 *
 * While a stream is captured    the capturing thread                     other threads
 *   giving it work              is recorded                              may not
 *   making a stream wait for it captures that stream too                 waits for what ran before
 *   waiting for it, the device, is LM_E_STATE: nothing of it has run yet waits for what ran before
 *     or reading a value
 *   work on another device      is LM_E_STATE                            runs
 *   lm_graph_keep_out           is false                                 is false
 *
 * A graph is captured (begin), recorded (end), launched any number of times by any thread, let go (free), and destroyed
 * by the next thread that uses graphs and is not capturing (lm_graph_drain): finalizers call no driver. */
typedef struct lm_graph lm_graph;
LM_API lm_status lm_graph_begin(lm_stream *s, lm_graph **out);
/* After an error in between: ends the capture and throws it away (*g becomes NULL). */
LM_API lm_status lm_graph_end(lm_graph **g, bool keep);
LM_API lm_status lm_graph_launch(lm_graph *g, lm_stream *s);
LM_API void lm_graph_free(lm_graph *g);
/* The graph being captured on this thread, or NULL. */
LM_API lm_graph *lm_graph_capturing(void);
/* Makes the graph's first stream wait for all other streams of the capture. */
LM_API lm_status lm_graph_gather(lm_graph *g);
/* No capture begins between keep_out and let_in, on any thread. For calls that would break one: those that wait for a
 * whole device, such as giving memory back to the driver, or make a library's handle. False if a capture is under way:
 * then the call has to be left out, and let_in is not called. */
LM_API bool lm_graph_keep_out(void);
LM_API void lm_graph_let_in(void);
/* Before this thread gives work to the stream: it becomes part of the thread's capture, if there is one. LM_E_STATE for
 * a stream of another device. */
LM_API lm_status lm_graph_join(lm_stream *s);
/* An error if this thread captures on another device: a graph has the work, and the memory, of one. */
LM_API lm_status lm_graph_admits(lm_device device);

#endif
