/* Gathers batches from tensors for data loaders, and draws random orders. */
#pragma once

#include "tensor/tensor.h"

/* Gathers rows of x [n, ...] by a 1-d int64 index that counts from 1 into a contiguous [index, ...]. LM_NO_DTYPE keeps
 * x's dtype. Otherwise values become scale * value + bias in `dtype`, in the same pass for uint8 to float32. Both
 * tensors are on the CPU. LM_E_INDEX names an index out of range. */
LM_API lm_status lm_rows_gather(lm_tensor *x, lm_tensor *index, lm_dtype dtype, double scale, double bias,
                                lm_tensor **out);

/* Gathers row k (from 1) alone: [...]. */
LM_API lm_status lm_row_gather(lm_tensor *x, int64_t k, lm_dtype dtype, double scale, double bias, lm_tensor **out);

/* Returns a permutation of 1 to n, int64 [n], that depends only on the seed (Fisher and Yates over Philox). */
LM_API lm_status lm_permutation(int64_t n, uint64_t seed, lm_tensor **out);

/* Draws `count` numbers from 1 to n with replacement, int64 [count], that depend only on the seed. n > 0 unless count
 * is 0. */
LM_API lm_status lm_draws(int64_t n, int64_t count, uint64_t seed, lm_tensor **out);
