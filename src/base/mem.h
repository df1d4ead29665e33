/* Allocates on the core's heap and grows lists. Every allocation except a tensor's storage uses these functions.
 * Storage uses device/alloc.h, which calls lm_alloc_must_fail() too, so one counter can make any allocation of the core
 * fail. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"

/* Return NULL when out of memory, with the error recorded. A size of 0 returns a valid pointer. */
LM_API void *lm_malloc(size_t bytes);
LM_API void *lm_calloc(size_t count, size_t size);
LM_API void *lm_realloc(void *p, size_t bytes);
/* Copies a text; NULL for NULL. */
LM_API char *lm_copy_text(const char *text);
LM_API void lm_free(void *p);
/* Declares a pointer, NULL or memory of these functions that is freed when the block ends: LM_FREED char *text = NULL.
 * No goto may jump over the declaration. */
#define LM_FREED __attribute__((cleanup(lm_free_at)))
static inline void lm_free_at(const void *at) {
  void *p;
  memcpy(&p, at, sizeof p);
  lm_free(p);
}

/* Grows *list, an array of *capacity items of `size` bytes, to at least n items, by half at least. Returns false and
 * leaves *list unchanged when out of memory. */
LM_API bool lm_list_grow(void *list, size_t *capacity, size_t n, size_t size);
/* Grows a list whose first memory is `first`, which belongs to another owner and is not freed. */
LM_API bool lm_list_grow_from(const void *first, void *list, size_t *capacity, size_t n, size_t size);

/* Appends a value to the array `items` of n items; false when out of memory. */
#define LM_APPEND(items, n, capacity, value) \
  (lm_list_grow(&(items), &(capacity), (n) + 1, sizeof *(items)) && ((void)((items)[(n)++] = (value)), true))

/* Edit lists linked by the field `next`: LM_LINK_LAST appends an item; LM_UNLINK removes one and is true if it was in
 * the list. */
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

/* Makes the nth allocation of the core from now on (1 is the next one) and all after it fail, for specs; 0 turns it
 * off. Process-wide. */
LM_API void lm_alloc_fail_from(long nth);
/* Returns the number of allocations since the last lm_alloc_fail_from; 0 while nothing is set to fail. */
LM_API long lm_alloc_count(void);
/* Counts one allocation and returns true if it must fail. For allocators. */
LM_API bool lm_alloc_must_fail(void);
