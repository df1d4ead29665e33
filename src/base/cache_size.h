/* The size of the last-level cache, read once: rules that depend on what stays in a cache ask here. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* Bytes of the largest cache of the machine's first CPU: $LM_CACHE_BYTES, or as reported by the kernel, at most 32 MB.
 */
LM_API size_t lm_cache_bytes(void);
/* The largest result that is still in the cache when its memory is used again: beside it are some more, and what they
 * are made of. */
static inline size_t lm_cached_result_bytes(void) { return lm_cache_bytes() / 4; }
