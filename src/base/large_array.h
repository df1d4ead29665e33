/* Local arrays too large for the C stack, which hosts make as small as 64 KB for their threads. They are on a stack of
 * their own, one for each thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Declares `name`: `count` items, not initialized, aligned to 64 bytes, until the block ends; NULL for a count of 0.
 * No goto may jump over it. */
#define LM_LARGE(type, name, count)                                                           \
  void *name##_pushed __attribute__((cleanup(lm_large_pop))) =                                \
      (size_t)(count) > 0 ? lm_large_push(sizeof(__typeof__(type)) * (size_t)(count)) : NULL; \
  __typeof__(type) *restrict name = name##_pushed

LM_API void *lm_large_push(size_t bytes) __attribute__((malloc, assume_aligned(64)));
LM_API void lm_large_pop(void *pushed); /* takes the address of what lm_large_push returned */

/* Returns whether this thread has such a stack. Without one it waits for the process's spare stack, so a worker that
 * others wait for must ask first. */
bool lm_large_ready(void);
