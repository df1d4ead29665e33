/* Copies batches of matrices to and from cuSOLVER's layout. */
#pragma once

#include "backend/cuda/libraries/cusolver.h"

static inline int lm_rows_of(const lm_tensor *x) { return (int)x->size[x->ndim - 2]; }
static inline int lm_columns_of(const lm_tensor *x) { return (int)x->size[x->ndim - 1]; }

enum { LM_BY_ROWS, LM_BY_COLUMNS };
/* Copies x to dense memory that f owns, row-major or column-major in the last two dims. */
lm_status lm_matrices_copy(lm_cuda_frame *f, const lm_tensor *x, int order, lm_tensor **out);
/* Makes scratch memory that the call's frame owns: dense [count, m, n], column-major. */
lm_status lm_matrices_scratch(const lm_solver_call *c, int64_t m, int64_t n, lm_tensor **out);
/* Copies the first rows and columns of src's matrices, or with `transposed` of their transposes, to dst's. src is dense
 * and column-major; both have the same number of matrices, in any dims. */
lm_status lm_matrices_take(lm_tensor *src, bool transposed, int64_t rows, int64_t columns, lm_tensor *dst);
