/* Allocates memory of every device, the CPU included, and caches freed blocks, since fresh pages cost more than
 * arithmetic. size_classes.h and segments.h describe the two allocators. */
#pragma once

#include <stddef.h>

#include "device/device.h"
#include "device/stream.h"

/* Returns 64-byte aligned memory of at least `bytes` (> 0). LM_E_OOM names requested, allocated and reserved bytes. */
LM_API lm_status lm_device_alloc(lm_device device, size_t bytes, void **out);
/* Frees p; `bytes` is the size passed to lm_device_alloc. */
LM_API void lm_device_free(lm_device device, void *p, size_t bytes);
/* Allocate and free with stream order. This thread's current stream, recorded in *used, may use the block at once. Pass
 * the last value of `used` to free: the block's next owner waits for its streams. They never block. */
LM_API lm_status lm_device_alloc_used(lm_device device, size_t bytes, void **out, lm_used *used);
LM_API void lm_device_free_used(lm_device device, void *p, size_t bytes, uint64_t used);

typedef struct lm_memory_stats {
  size_t allocated, reserved; /* bytes in use; bytes obtained from the driver */
  size_t max_allocated, max_reserved;
} lm_memory_stats;

LM_API lm_memory_stats lm_memory_stats_of(lm_device device);
LM_API void lm_memory_reset_peak(lm_device device);
/* Returns every cached block to the driver; does nothing during any thread's graph capture, which that would break. */
LM_API void lm_memory_empty_cache(lm_device device);
/* Limits this process to a fraction (0 to 1) of the device's memory; allocations beyond it fail with LM_E_OOM. */
LM_API lm_status lm_memory_set_fraction(lm_device device, double fraction);

/* Allocates pinned host memory, cached by size; a block freed while a stream uses it is reused after that use ends. */
LM_API lm_status lm_pinned_alloc(size_t bytes, void **out);
LM_API void lm_pinned_free(void *p);
/* Returns true if p lies in a block of lm_pinned_alloc. */
LM_API bool lm_is_pinned(const void *p);
/* Records that the stream was given work that reads or writes the block p lies in. */
LM_API void lm_pinned_use(const void *p, lm_stream *s);
