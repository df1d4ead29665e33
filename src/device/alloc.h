/* Memory of every device, the CPU included, is cached: fresh pages cost more than arithmetic. size_classes.h and
 * segments.h say how. */
#pragma once

#include <stddef.h>

#include "device/device.h"
#include "device/stream.h"

/* 64-byte aligned memory of at least `bytes` (> 0). LM_E_OOM names asked, allocated, reserved. */
LM_API lm_status lm_device_alloc(lm_device device, size_t bytes, void **out);
/* `bytes` as given to lm_device_alloc. */
LM_API void lm_device_free(lm_device device, void *p, size_t bytes);
/* The same where streams count: the block may be used by this thread's current stream at once, and *used says so.
 * Given back with what has become of `used`; whoever gets the block next waits for those streams. Never blocks. */
LM_API lm_status lm_device_alloc_used(lm_device device, size_t bytes, void **out, lm_used *used);
LM_API void lm_device_free_used(lm_device device, void *p, size_t bytes, uint64_t used);

typedef struct lm_memory_stats {
  size_t allocated, reserved; /* bytes in use; bytes held from the driver */
  size_t max_allocated, max_reserved;
} lm_memory_stats;

LM_API lm_memory_stats lm_memory_stats_of(lm_device device);
LM_API void lm_memory_reset_peak(lm_device device);
/* Give every cached block back to the driver; nothing while anybody captures a graph, which that would break. */
LM_API void lm_memory_empty_cache(lm_device device);
/* At most this share (0 to 1) of the device's memory is reserved by this process; else LM_E_OOM. */
LM_API lm_status lm_memory_set_fraction(lm_device device, double fraction);

/* Pinned host memory, cached by size; a block freed while a stream may still use it is kept until it is done. */
LM_API lm_status lm_pinned_alloc(size_t bytes, void **out);
LM_API void lm_pinned_free(void *p);
/* Whether p lies in a block of lm_pinned_alloc. */
LM_API bool lm_is_pinned(const void *p);
/* The stream was given work that reads or writes the block p lies in. */
LM_API void lm_pinned_use(const void *p, lm_stream *s);
