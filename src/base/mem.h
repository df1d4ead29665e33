/* The core's own heap. Every allocation that is not a tensor's storage goes through here, and
 * storage goes through device/alloc.h, which asks lm_alloc_may_fail() too, so that one counter
 * makes any allocation of the core fail on purpose. */
#ifndef LM_BASE_MEM_H
#define LM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* NULL when out of memory; the message is already recorded. Sizes of 0 give a valid pointer. */
LM_API void *lm_malloc(size_t bytes);
LM_API void *lm_calloc(size_t count, size_t size);
LM_API void *lm_realloc(void *p, size_t bytes);
LM_API void lm_free(void *p);

/* Fault injection for specs: the nth allocation of the core from now on (1 is the next one) and
 * all after it fail; 0 turns it off. Process-wide. */
LM_API void lm_alloc_fail_from(long nth);
/* How many allocations were asked for since the last lm_alloc_fail_from. */
LM_API long lm_alloc_count(void);
/* Counts one allocation; true if it has to fail. For allocators. */
LM_API bool lm_alloc_must_fail(void);

#endif
