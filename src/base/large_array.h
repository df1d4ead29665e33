/* Allocates local arrays too large for the C stack, which hosts make as small as 64 KB for their threads, on a second
 * stack of each thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Declares the array `name` of `count` uninitialized items, aligned to 64 bytes, which lives until the block ends; NULL
 * for a count of 0. No goto may jump over it. */
#define LM_LARGE(type, name, count)                                                           \
  void *name##_pushed __attribute__((cleanup(lm_large_pop))) =                                \
      (size_t)(count) > 0 ? lm_large_push(sizeof(__typeof__(type)) * (size_t)(count)) : NULL; \
  __typeof__(type) *restrict name = name##_pushed

LM_API void *lm_large_push(size_t bytes) __attribute__((malloc, assume_aligned(64)));
LM_API void lm_large_pop(void *pushed); /* `pushed` is the address of the pointer that lm_large_push returned */

/* Returns true if this thread has such a stack. A thread without one waits for the process's spare stack, so a worker
 * that others wait for must check first. */
bool lm_large_ready(void);
