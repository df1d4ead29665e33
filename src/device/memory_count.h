/* Counts the memory of each device, and words the error when there is no more. */
#pragma once

#include <pthread.h>

#include "device/alloc.h"
#include "device/driver.h"

typedef struct lm_memory_count {
  pthread_mutex_t lock; /* guards the counts and the device's allocator */
  lm_memory_stats stats;
  size_t limit; /* maximum of reserved bytes; 0: none */
} lm_memory_count;

lm_memory_count *lm_memory_count_of(lm_device device);

/* Adds to the bytes in use, or to those obtained from the driver. Both require the lock. */
static inline void lm_memory_count_allocated(lm_memory_count *m, size_t bytes) {
  lm_memory_stats *s = &m->stats;
  s->allocated += bytes;
  if (s->allocated > s->max_allocated) s->max_allocated = s->allocated;
}
static inline void lm_memory_count_reserved(lm_memory_count *m, size_t bytes) {
  lm_memory_stats *s = &m->stats;
  s->reserved += bytes;
  if (s->reserved > s->max_reserved) s->max_reserved = s->reserved;
}

/* Returns LM_E_OOM for a request of `bytes`, naming the device's free, reserved and allocated memory. */
lm_status lm_out_of_memory(const lm_driver *driver, lm_device device, size_t bytes);
