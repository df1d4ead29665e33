/* One caching allocator policy for every device, the CPU included: fresh pages cost more than
 * arithmetic. Freed blocks are kept by size and handed out again; under pressure all cached
 * blocks of the device go back to the driver and the request is tried once more. */
#ifndef LM_DEVICE_ALLOC_H
#define LM_DEVICE_ALLOC_H

#include <stddef.h>

#include "device/device.h"

/* 64-byte aligned memory of at least `bytes` (> 0). LM_E_OOM names asked, allocated, reserved. */
LM_API lm_status lm_device_alloc(lm_device device, size_t bytes, void **out);
/* `bytes` as given to lm_device_alloc. */
LM_API void lm_device_free(lm_device device, void *p, size_t bytes);

typedef struct lm_memory_stats {
  size_t allocated, reserved; /* bytes in use; bytes held from the driver */
  size_t max_allocated, max_reserved;
} lm_memory_stats;

LM_API lm_memory_stats lm_memory_stats_of(lm_device device);
LM_API void lm_memory_reset_peak(lm_device device);
/* Give every cached block back to the driver. */
LM_API void lm_memory_empty_cache(lm_device device);

#endif
