/* Factorizations of batches of matrices through cuSOLVER and, for many small ones, cuBLAS: as LAPACK's routines of
 * these names. Matrices are column-major and dense, one after another; each call is for all `count` of them. Until a
 * slot that opened a call returns, no graph is captured: the routines may wait for the stream, or take memory of their
 * own. */
#pragma once

#include "backend/cuda/cuda.h"
#include "op/linalg/matrix_errors.h"

typedef struct lm_solver lm_solver;

typedef struct lm_solver_call {
  lm_cuda_frame *f; /* has what the call works in, and ends it */
  lm_dtype dtype;
  lm_device device;
  size_t item;
  int64_t count;
  void *stream;
  lm_solver *solver;
  lm_tensor *infos;
  int *info, *flag; /* [count] on the device, from 0: what routines say of each matrix; 1 for what is not finite */
} lm_solver_call;

/* Begins a call for matrices like x. LM_E_MISSING where there are no libraries, or while anybody captures: then the CPU
 * has to compute. */
lm_status lm_solver_open(lm_cuda_frame *f, const lm_tensor *x, int64_t count, lm_solver_call *c);
/* Waits, and returns the first matrix of which info or flag say that something is wrong. */
lm_status lm_solver_infos(const lm_solver_call *c, lm_bad_matrix *bad);
/* The same for what iterates: an error for a matrix A, of x, that is not finite. LM_E_MISSING where one did not
 * converge, so that the CPU, whose ways are others, tries. */
lm_status lm_solver_converged(const lm_solver_call *c, const lm_tensor *x);

/* Memory of the frame: n elements of the dtype for each matrix. */
lm_status lm_solver_scratch(const lm_solver_call *c, int64_t n, lm_tensor **out);

/* P L U of [m, n] in place; pivots [min(m, n)], info. */
lm_status lm_solver_getrf(const lm_solver_call *c, int m, int n, void *a, int *pivots);
/* b [n, k] becomes X of A X = b, or with `transposed` of A^T X = b. */
lm_status lm_solver_getrs(const lm_solver_call *c, bool transposed, int n, int k, const void *lu, const int *pivots,
                          void *b);
/* In one triangle of a [n, n], which is read too; info. */
lm_status lm_solver_potrf(const lm_solver_call *c, bool upper, int n, void *a);
/* b [rows, k], of which the first n count, becomes X of A X = b by one triangle of a, whose columns lie lda apart. */
typedef struct lm_solver_triangle {
  bool upper, transposed, ones;
  int n, k, lda, ldb;
  int64_t a_step, b_step; /* elements from one matrix to the next */
} lm_solver_triangle;
lm_status lm_solver_trsm(const lm_solver_call *c, const lm_solver_triangle *t, const void *a, void *b);
/* R and the reflectors of Q of [m, n] in place; tau [min(m, n)]. */
lm_status lm_solver_geqrf(const lm_solver_call *c, int m, int n, void *a, void *tau);
/* The first `columns` columns of Q in place of k reflectors. tau: k of each matrix. */
lm_status lm_solver_orgqr(const lm_solver_call *c, int m, int columns, int k, void *a, const void *tau);
/* Q^T b, of b [m, columns], by the k reflectors in a [m, k]. */
lm_status lm_solver_ormqr(const lm_solver_call *c, int m, int columns, int k, const void *a, const void *tau, void *b);
/* Eigenvalues w [n], ascending, of one triangle of a [n, n], which becomes the vectors, or is destroyed; info. */
lm_status lm_solver_syevd(const lm_solver_call *c, bool vectors, bool upper, int n, void *a, void *w);
/* Whether U and V of all are found whole, because of tiny ones nothing else is. */
bool lm_solver_is_complete(const lm_solver_call *c, bool whole, int m, int n);
/* U diag(s) V^T of a [m, n], which is destroyed: s [least], descending, U [m, m] and V [n, n], or of
 * `least` columns unless they are found whole; without `vectors` both must be there all the same; info. */
lm_status lm_solver_gesvd(const lm_solver_call *c, bool vectors, bool whole, int m, int n, void *a, void *s, void *u,
                          void *v);
