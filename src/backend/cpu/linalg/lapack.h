/* LAPACK's routines over a batch of matrices. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/linalg/openblas.h"
#include "op/linalg/matrix_errors.h"

/* A number of that dtype, by address. */
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
static inline double lm_scalar_at(lm_dtype dtype, const void *values, int64_t i) {
  return dtype == LM_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}
static inline void lm_scalar_put(lm_dtype dtype, void *values, int64_t i, double value) {
  if (dtype == LM_F64)
    ((double *)values)[i] = value;
  else
    ((float *)values)[i] = (float)value;
}

/* One matrix of a batch, with `work` bytes of room; LAPACK's info, 0 if all is well. */
typedef int lm_matrix_fn(const void *job, int64_t i, char *work);
/* The info of a matrix for which a call of ours failed. lm_each_matrix returns its status. */
static inline int lm_matrix_failed(lm_status status) {
  lm_parallel_note(status);
  return -1;
}
/* Each of `count` matrices, by as many threads as `flops` each are worth; how many that are. */
int lm_matrix_threads(int64_t count, double flops);
lm_status lm_each_matrix(int64_t count, double flops, size_t work, lm_matrix_fn *one, const void *job,
                         lm_bad_matrix *bad);

/* rows [count, ld] = H1 H2 ... times each, by the n reflections of a matrix that lies in memory as lm_householder_loops
 * leave it, v of reflection i from a[i * ld + i] on and n - i long. work: 32 (n + 2 count + 64) elements. */
lm_status lm_reflect_rows(lm_dtype dtype, int n, int ld, const void *a, const void *tau, int count, void *rows,
                          void *work);

/* How many elements of workspace, by what a routine said when asked with lwork -1. -1: more than it can count. */
int lm_work_size(lm_dtype dtype, const lm_scalar *answer);

/* A dense copy of x, column-major or row-major in its last two dims; row-major may be x itself. */
lm_status lm_column_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out);
/* How many matrices; the i-th of dense ones. */
int64_t lm_matrix_count(const lm_tensor *x);
static inline void *lm_matrix_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 2] * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
/* The i-th vector of dense [..., n]. */
static inline void *lm_vector_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
