/* What a loader needs done per element: batches gathered from tensors, and orders drawn at random. */
#pragma once

#include "tensor/tensor.h"

/* Rows of x, [n, ...], by a 1-d int64 index that counts from 1: [index, ...], contiguous. dtype
 * LM_NO_DTYPE keeps x's; otherwise values become scale * value + bias in that dtype, in the same pass for
 * uint8 to float32. Both on the CPU. LM_E_INDEX names an index out of range and its place. */
LM_API lm_status lm_rows_gather(lm_tensor *x, lm_tensor *index, lm_dtype dtype, double scale, double bias,
                                lm_tensor **out);

/* Row k, from 1 on, by itself: [...]. */
LM_API lm_status lm_row_gather(lm_tensor *x, int64_t k, lm_dtype dtype, double scale, double bias, lm_tensor **out);

/* int64 [n]: 1 to n in an order that depends on the seed alone (Fisher and Yates over Philox). */
LM_API lm_status lm_permutation(int64_t n, uint64_t seed, lm_tensor **out);

/* int64 [count]: numbers from 1 to n, each drawn from all of them, that depend on the seed alone. n > 0 unless count
 * is 0. */
LM_API lm_status lm_draws(int64_t n, int64_t count, uint64_t seed, lm_tensor **out);
