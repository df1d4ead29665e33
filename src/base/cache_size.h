/* Reports the size of the last-level cache, read once, for code that chooses by whether data stays in it. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* Returns the bytes of the largest cache of the machine's first CPU: $LM_CACHE_BYTES, or the kernel's value, at most 32
 * MB. */
LM_API size_t lm_cache_bytes(void);
/* Returns the largest size in bytes of a result that is still in the cache when its memory is reused; its operands and
 * a few other results share the cache. */
static inline size_t lm_cached_result_bytes(void) { return lm_cache_bytes() / 4; }
