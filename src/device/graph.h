/* Captures what a thread enqueues between begin and end as a graph instead of running it. Allocations during the
 * capture come from the graph's own arena, which lives as long as the graph. A thread captures one graph at a time.
 *
 * A stream that is    becomes    by
 *   idle               running    receiving work, after which lm_stream_touch is called; any thread
 *   running            idle       completing all its work; the thread that waited for it calls lm_stream_done
 *   idle or running    captured   lm_graph_begin, which waits for the whole device first; the capturing thread
 *   idle or running    captured   waiting for a stream or an event of the capture; the capturing thread
 *   captured           idle       lm_graph_end, which keeps or discards the graph; the capturing thread
 *
 * lm_captures is locked for writing while a stream becomes captured, and for reading while an event is recorded on it.
 *
 * While a stream is captured    the capturing thread                     other threads
 *   giving it work              records the work                         must not
 *   making a stream wait for it captures that stream too                 wait for the work before the capture
 *   waiting for it, the device, gets LM_E_STATE: none of it has run yet  wait for the work before the capture
 *     or reading a value
 *   work on another device      gets LM_E_STATE                          run it
 *   lm_graph_block              gets false                               get false
 *
 * A graph is captured (begin), ended, launched any number of times by any thread, and freed. The next thread that uses
 * graphs and is not capturing destroys the freed ones (lm_graph_drain): finalizers call no driver. */
#pragma once

#include "device/stream.h"

typedef struct lm_graph lm_graph;
LM_API lm_status lm_graph_begin(lm_stream *s, lm_graph **out);
/* Ends the capture. Frees the graph and sets *g to NULL on failure or if `keep` is false (after an earlier error). */
LM_API lm_status lm_graph_end(lm_graph **g, bool keep);
LM_API lm_status lm_graph_launch(lm_graph *g, lm_stream *s);
LM_API void lm_graph_free(lm_graph *g);
/* Returns the graph being captured on this thread, or NULL. */
LM_API lm_graph *lm_graph_capturing(void);
/* Makes the graph's first stream wait for all other streams of the capture. */
LM_API lm_status lm_graph_gather(lm_graph *g);
/* Prevents captures on any thread until lm_graph_unblock, for calls that would break one: those that wait for a whole
 * device, such as returning memory to the driver, or create a library's handle. Returns false if a capture is running:
 * skip the call then, and do not call lm_graph_unblock. */
LM_API bool lm_graph_block(void);
LM_API void lm_graph_unblock(void);
/* Adds the stream, before this thread submits work to it, to the thread's capture if there is one. LM_E_STATE for a
 * stream of another device. */
LM_API lm_status lm_graph_join(lm_stream *s);
