/* Declares helpers to run LAPACK's routines over a batch of matrices. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/linalg/openblas.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/scalar_access.h"
#include "op/linalg/matrix_errors.h"

/* A number of either dtype, passed by address. */
typedef union lm_scalar {
  float f;
  double d;
} lm_scalar;
static inline lm_scalar lm_scalar_of(lm_dtype dtype, double value) {
  lm_scalar s;
  if (dtype == LM_F64)
    s.d = value;
  else
    s.f = (float)value;
  return s;
}

/* Computes matrix i of a batch, with scratch memory; returns LAPACK's info, 0 on success. */
typedef int lm_matrix_fn(const void *job, int64_t i, char *work);
/* Notes a failed status of our own, which lm_each_matrix returns, and returns an info for the matrix. */
static inline int lm_matrix_failed(lm_status status) {
  lm_parallel_note(status);
  return -1;
}
/* Return how many threads matrices of `flops` each are worth; run `one` on each matrix, and set *bad if one failed. */
int lm_matrix_threads(int64_t count, double flops);
lm_status lm_each_matrix(int64_t count, double flops, size_t work, lm_matrix_fn *one, const void *job,
                         lm_bad_matrix *bad);

/* Multiplies rows [count, ld] by H1 H2 ..., the n reflections of a matrix in memory as lm_householder_loops leaves it:
 * v of reflection i begins at a[i * ld + i], n - i long. work: 32 (n + 2 count + 64) elements. */
lm_status lm_reflect_rows(lm_dtype dtype, int n, int ld, const void *a, const void *tau, int count, void *rows,
                          void *work);

/* Set *out to a dense copy of x, column-major or row-major in its last two dims; lm_row_major may return x itself. The
 * caller releases *out, even after a failure. */
lm_status lm_column_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out);
/* Returns the address of the i-th of dense matrices. */
static inline void *lm_matrix_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 2] * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
/* Returns the address of the i-th vector of dense [..., n]. */
static inline void *lm_vector_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
