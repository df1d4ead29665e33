/* The core's own heap, and lists. Every allocation that is not a tensor's storage goes through here, and
 * storage goes through device/alloc.h, which asks lm_alloc_may_fail() too, so that one counter
 * makes any allocation of the core fail on purpose. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* NULL when out of memory; the message is already recorded. Sizes of 0 give a valid pointer. */
LM_API void *lm_malloc(size_t bytes);
LM_API void *lm_calloc(size_t count, size_t size);
LM_API void *lm_realloc(void *p, size_t bytes);
LM_API void lm_free(void *p);

/* Makes room for n items of `size` bytes in *list, an array of *capacity items, which grows by half at least. False,
 * with *list as it was, when out of memory. */
LM_API bool lm_list_grow(void *list, size_t *capacity, size_t n, size_t size);
/* The same for a list that begins in `first`, memory of its owner's. */
LM_API bool lm_list_grow_from(const void *first, void *list, size_t *capacity, size_t n, size_t size);

/* In a list of items linked by their field `next`: puts an item behind the last one; takes one out, and says whether it
 * was there. */
#define LM_LINK_LAST(list, item)       \
  ({                                   \
    __typeof__(&(list)) at_ = &(list); \
    while (*at_) at_ = &(*at_)->next;  \
    *at_ = (item);                     \
    (*at_)->next = NULL;               \
  })
#define LM_UNLINK(list, item)                           \
  ({                                                    \
    __typeof__(&(list)) at_ = &(list);                  \
    while (*at_ && *at_ != (item)) at_ = &(*at_)->next; \
    bool found_ = *at_ != NULL;                         \
    if (found_) *at_ = (*at_)->next;                    \
    found_;                                             \
  })

/* Fault injection for specs: the nth allocation of the core from now on (1 is the next one) and
 * all after it fail; 0 turns it off. Process-wide. */
LM_API void lm_alloc_fail_from(long nth);
/* How many allocations were asked for since the last lm_alloc_fail_from. */
LM_API long lm_alloc_count(void);
/* Counts one allocation; true if it has to fail. For allocators. */
LM_API bool lm_alloc_must_fail(void);
