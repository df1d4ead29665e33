/* Allocates memory of devices whose driver's allocations are slow: splits segments into blocks and merges adjacent free
 * ones. The sizes are PyTorch's published ones (lm_segment_rules).
 *
 * A free block stays with the stream that used it: later work of that stream may write it at once. Another stream gets
 * it only when the driver has no more memory, and then waits. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

/* A set of segments that only one graph's capture allocates from. */
typedef struct lm_arena lm_arena;
lm_status lm_arena_new(lm_device device, lm_arena **out);
/* Shares its memory with all requests and frees `a`. `pending`: streams (bits of lm_used) that may still use it. */
void lm_arena_retire(lm_arena *a, uint64_t pending);
/* Serves this thread's requests on the arena's device from `a` from now on; NULL: from the shared memory again. */
void lm_arena_use(lm_arena *a);

/* Returns true if the device uses segments: its driver has rules for them, or streams. */
bool lm_is_segmented(const lm_driver *driver);
lm_status lm_segments_alloc(lm_device device, size_t bytes, lm_stream *s, void **out);
void lm_segments_free(lm_device device, void *p, uint64_t used);
/* Returns the start of p's segment; NULL if p is not from lm_segments_alloc. *of_graph: a graph owns the memory. */
void *lm_segments_base(lm_device device, const void *p, bool *of_graph);
void lm_segments_empty_cache(lm_device device);
