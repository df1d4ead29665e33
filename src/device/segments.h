/* The allocator for devices whose driver's memory comes dear: segments cut into blocks. Blocks next to each other grow
 * together again once free; the sizes are PyTorch's published ones (lm_segment_rules).
 *
 * A free block stays with the stream it was used on: work given to that stream later may write it at once. Another
 * stream gets one only when the driver has nothing more, and then waits. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

/* Segments that only one graph's capture takes from. */
typedef struct lm_arena lm_arena;
lm_status lm_arena_new(lm_device device, lm_arena **out);
/* Its memory goes to everybody; `pending`: streams (bits of lm_used) that may still use any of it. */
void lm_arena_retire(lm_arena *a, uint64_t pending);
/* Where this thread's requests go from now on, on the arena's device; NULL: to everybody's again. */
void lm_arena_use(lm_arena *a);

/* Whether the device's memory is cut this way: the driver has rules for it, or streams. */
bool lm_is_segmented(const lm_driver *driver);
lm_status lm_segments_alloc(lm_device device, size_t bytes, lm_stream *s, void **out);
void lm_segments_free(lm_device device, void *p, uint64_t used);
/* What the driver gave p's memory in; p is as from lm_segments_alloc. NULL if it is not. *of_graph: it is a graph's. */
LM_API void *lm_segments_base(lm_device device, const void *p, bool *of_graph);
lm_memory_stats lm_segments_stats(lm_device device);
void lm_segments_reset_peak(lm_device device);
void lm_segments_empty_cache(lm_device device);
/* Bytes held from the driver at most; 0: no limit. */
lm_status lm_segments_limit(lm_device device, size_t bytes);
