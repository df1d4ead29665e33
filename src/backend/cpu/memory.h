/* Takes memory that a kernel needs until a block ends, which releases it. No goto may jump over these declarations. */
#pragma once

#include "device/alloc.h"
#include "tensor/tensor.h"

/* Expands X(type) for integers as wide as the elements of each dtype. */
#define LM_EACH_WIDTH(X) X(uint8_t) X(uint16_t) X(uint32_t) X(uint64_t)

typedef struct lm_workspace {
  void *data;
  size_t bytes;
} lm_workspace;

static inline lm_status lm_workspace_take(lm_workspace *w) {
  return w->bytes > 0 ? lm_device_alloc(LM_DEVICE(LM_CPU, 0), w->bytes, &w->data) : LM_OK;
}
static inline void lm_workspace_release(lm_workspace *w) {
  if (w->data) lm_device_free(LM_DEVICE(LM_CPU, 0), w->data, w->bytes);
}

/* Declares `name`, uninitialized memory for `count` items from the allocator that keeps it for the next call, since
 * malloc would return fresh pages; NULL for a count of 0. Returns from the function with LM_E_OOM if there is none. */
#define LM_WORKSPACE(type, name, count)                                                                              \
  lm_workspace name##_taken __attribute__((cleanup(lm_workspace_release))) = {NULL, sizeof(type) * (size_t)(count)}; \
  NEED(lm_workspace_take(&name##_taken));                                                                            \
  type *const name = name##_taken.data

/* A part of a block of memory; *at is its address. */
typedef struct lm_memory_part {
  void **at;
  size_t bytes;
} lm_memory_part;

/* Returns the bytes of n parts, one after the other and each aligned to 64 bytes, and sets their addresses from
 * `memory` on, or to NULL if that is NULL. */
static inline size_t lm_memory_divide(char *memory, int n, const lm_memory_part *parts) {
  size_t all = 0;
  for (int i = 0; i < n; i++) {
    *parts[i].at = memory ? memory + all : NULL;
    all += (parts[i].bytes + 63) / 64 * 64;
  }
  return all;
}
