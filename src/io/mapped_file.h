/* A file as memory, shared by those that lie over it. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mapping_guard.h"
#include "tensor/tensor.h"

typedef struct lm_mapping {
  _Atomic int32_t rc;
  char *data;
  size_t bytes;
  lm_mapping_guard *watched;
} lm_mapping;

/* The whole open file, of more than no bytes. Private: what is written to the memory does not reach the file. Once
 * somebody has cut it short, lm_truncation_check fails after what is gone was read. */
lm_status lm_mapping_open(const char *path, int fd, size_t bytes, lm_mapping **out);
void lm_mapping_release(void *mapping); /* NULL is fine */
/* A tensor over bytes from `at` on, which holds on to the mapping. Contiguous; the place is aligned to the dtype. */
lm_status lm_mapping_tensor(lm_mapping *m, lm_dtype dtype, int ndim, const int64_t *size, size_t at, size_t bytes,
                            lm_tensor **out);
