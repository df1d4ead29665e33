/* Capture: what a thread enqueues between begin and end becomes a graph instead of running. Memory asked for
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
 *   lm_graph_block           is false                                 is false
 *
 * A graph is captured (begin), recorded (end), launched any number of times by any thread, let go (free), and destroyed
 * by the next thread that uses graphs and is not capturing (lm_graph_drain): finalizers call no driver. */
#pragma once

#include "device/stream.h"

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
 * then the call must be left out, and let_in is not called. */
LM_API bool lm_graph_block(void);
LM_API void lm_graph_unblock(void);
/* Before this thread submits work to the stream: it becomes part of the thread's capture, if there is one. LM_E_STATE
 * for a stream of another device. */
LM_API lm_status lm_graph_join(lm_stream *s);
/* An error if this thread captures on another device: a graph has the work, and the memory, of one. */
LM_API lm_status lm_graph_admits(lm_device device);
