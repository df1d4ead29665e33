/* Draws numbers by rejection, and indices by weight. Functions return a cudaError_t. For C and CUDA. */
#pragma once

#include "c_linkage.h"
#include "fill.h"

/* Draws out[i] from Poisson(x[i]) or, with `p`, Binomial(x[i], p[i]). All are of one floating dtype. */
LM_C int lm_sample_counts(int dtype, const void *x, const void *p, void *out, int64_t n, lm_blocks_drawn draw,
                          void *stream);

/* Compute the prefix sums of x [rows, n], a floating dtype; draw indices [rows, k], from 1, by these weights. */
LM_C int lm_sample_sums(int dtype, const void *x, double *sums, int64_t rows, int64_t n, void *stream);
LM_C int lm_sample_indices(const double *sums, int64_t *indices, int64_t rows, int64_t n, int64_t k,
                           lm_blocks_drawn draw, void *stream);
