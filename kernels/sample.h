/* Numbers drawn by rejection, and indices drawn by weight. Functions return a cudaError_t. For C and CUDA. */
#pragma once

#include "fill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i]: of the rate x[i], or with `p` the successes of x[i] trials of probability p[i]. All of one floating dtype. */
int lm_sample_counts(int dtype, const void *x, const void *p, void *out, int64_t n, lm_blocks_drawn draw, void *stream);

/* sums [rows, n] of x [rows, n], a floating dtype, along its rows; then indices [rows, k], from 1, by weight. */
int lm_sample_sums(int dtype, const void *x, double *sums, int64_t rows, int64_t n, void *stream);
int lm_sample_indices(const double *sums, int64_t *indices, int64_t rows, int64_t n, int64_t k, lm_blocks_drawn draw,
                      void *stream);

#ifdef __cplusplus
}
#endif
