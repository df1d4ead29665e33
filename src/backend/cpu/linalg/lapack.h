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
/* Runs `one`, in which `flops` are computed and LAPACK is called, on each of `count` matrices, with `work` bytes of
 * scratch memory; sets *bad if one failed. */
lm_status lm_each_by_lapack(int64_t count, double flops, size_t work, lm_matrix_fn *one, const void *job,
                            lm_bad_matrix *bad);
/* Runs a loop that calls LAPACK on several threads, within one of these functions, like lm_parallel. */
lm_status lm_parallel_by_lapack(int64_t count, double work, size_t scratch, lm_parallel_fn *fn, void *ctx);

/* Returns the numbers of workspace with which LAPACK's routines take n columns by blocks. */
static inline int lm_blocked_workspace(int n) {
  enum { COLUMNS = 64 }; /* columns of the widest block */
  return COLUMNS * (n < 1 ? 1 : n);
}

/* Set *out to a dense copy of x, column-major or row-major in its last two dims; lm_row_major may return x itself. The
 * caller releases *out, even after a failure. */
lm_status lm_column_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major(const lm_tensor *x, lm_tensor **out);
lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out);
/* Return the number of matrices, and the address of the i-th of dense ones. */
int64_t lm_matrix_count(const lm_tensor *x);
static inline void *lm_matrix_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 2] * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
/* Returns the address of the i-th vector of dense [..., n]. */
static inline void *lm_vector_at(const lm_tensor *x, int64_t i) {
  return x->data + (size_t)(i * x->size[x->ndim - 1]) * lm_dtype_size(x->dtype);
}
