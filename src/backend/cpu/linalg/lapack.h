/* LAPACK in OpenBLAS, and what runs it over a batch.
 *
 * Its matrices are column-major: a row-major one is the transposed to it. Fortran passes everything by address, and the
 * lengths of texts at the end. */
#pragma once

#include "backend/cpu/cpu.h"
#include "op/linalg/matrix_errors.h"

#define LM_LAPACK(name, ...)    \
  void s##name##_(__VA_ARGS__); \
  void d##name##_(__VA_ARGS__)
LM_LAPACK(gemm, const char *transa, const char *transb, const int *m, const int *n, const int *k, const void *alpha,
          const void *a, const int *lda, const void *b, const int *ldb, const void *beta, void *c, const int *ldc,
          size_t, size_t);
LM_LAPACK(syevd, const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w, void *work,
          const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
LM_LAPACK(gesdd, const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s, void *u,
          const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, int *iwork, int *info, size_t);
LM_LAPACK(gels, const char *trans, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
          const int *ldb, void *work, const int *lwork, int *info, size_t);
LM_LAPACK(gelsy, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb,
          int *jpvt, const void *rcond, int *rank, void *work, const int *lwork, int *info);
LM_LAPACK(gelss, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb, void *s,
          const void *rcond, int *rank, void *work, const int *lwork, int *info);
LM_LAPACK(gelsd, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb, void *s,
          const void *rcond, int *rank, void *work, const int *lwork, int *iwork, int *info);

/* LM_CALL(LM_F64, getrf, ...): the routine for that dtype. */
#define LM_CALL(dtype, name, ...) ((dtype) == LM_F64 ? d##name##_(__VA_ARGS__) : s##name##_(__VA_ARGS__))

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
enum { LM_FAILED = -999 }; /* in place of info: it was not LAPACK that failed */
/* Each of `count` matrices, by as many threads as `flops` each are worth. */
lm_status lm_each_matrix(int64_t count, double flops, size_t work, lm_matrix_fn *one, const void *job,
                         lm_bad_matrix *bad);

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
