/* Factorizes batches of matrices by cuSOLVER and, for many small ones, cuBLAS, as LAPACK's routines of these names.
 * Matrices are column-major and dense, one after another; each call is for all `count` of them. No graph is captured
 * until a slot that opened a call returns: the routines may wait for the stream, or allocate memory. */
#pragma once

#include "backend/cuda/cuda.h"
#include "op/linalg/matrix_errors.h"

typedef struct lm_solver lm_solver;

typedef struct lm_solver_call {
  lm_cuda_frame *f; /* owns the call's memory, and ends it */
  lm_dtype dtype;
  lm_device device;
  size_t item;
  int64_t count;
  void *stream;
  lm_solver *solver;
  lm_tensor *infos;
  int *info, *flag; /* [count] on the device, from 0: routines' info of each matrix; 1 if it is not finite */
} lm_solver_call;

/* Begins a call for matrices like x. LM_E_MISSING if there are no libraries, or during any capture: then the CPU must
 * compute. */
lm_status lm_solver_open(lm_cuda_frame *f, const lm_tensor *x, int64_t count, lm_solver_call *c);
/* Waits, and returns the first matrix with a nonzero info or flag. */
lm_status lm_solver_infos(const lm_solver_call *c, lm_bad_matrix *bad);
/* Checks an iterative routine: an error if a matrix of x (A in the message) is not finite. LM_E_MISSING if one did not
 * converge, so that the CPU tries, by other algorithms. */
lm_status lm_solver_converged(const lm_solver_call *c, const lm_tensor *x);

/* Allocates memory of the frame: n elements of the dtype for each matrix. */
lm_status lm_solver_scratch(const lm_solver_call *c, int64_t n, lm_tensor **out);

/* Computes P L U of a [m, n] in place; pivots [min(m, n)], info. */
lm_status lm_solver_getrf(const lm_solver_call *c, int m, int n, void *a, int *pivots);
/* Solves A X = b, or with `transposed` A^T X = b, in place of b [n, k]. */
lm_status lm_solver_getrs(const lm_solver_call *c, bool transposed, int n, int k, const void *lu, const int *pivots,
                          void *b);
/* Computes Cholesky's factor in one triangle of a [n, n], which is the part that is read; info. */
lm_status lm_solver_potrf(const lm_solver_call *c, bool upper, int n, void *a);
/* Arguments of trsm: the first n rows of b become X of A X = b by one triangle of a, whose columns are lda apart. */
typedef struct lm_solver_triangle {
  bool upper, transposed, ones;
  int n, k, lda, ldb;
  int64_t a_step, b_step; /* elements from one matrix to the next */
} lm_solver_triangle;
lm_status lm_solver_trsm(const lm_solver_call *c, const lm_solver_triangle *t, const void *a, void *b);
/* Computes R and the reflectors of Q of a [m, n] in place; tau [min(m, n)]. */
lm_status lm_solver_geqrf(const lm_solver_call *c, int m, int n, void *a, void *tau);
/* Computes the first `columns` columns of Q in place of k reflectors. tau: k for each matrix. */
lm_status lm_solver_orgqr(const lm_solver_call *c, int m, int columns, int k, void *a, const void *tau);
/* Computes Q^T b in place of b [m, columns], by the k reflectors in a [m, k]. */
lm_status lm_solver_ormqr(const lm_solver_call *c, int m, int columns, int k, const void *a, const void *tau, void *b);
/* Computes eigenvalues w [n], ascending, from a triangle of a [n, n], which becomes the vectors, or is destroyed;
 * info. */
lm_status lm_solver_syevd(const lm_solver_call *c, bool vectors, bool upper, int n, void *a, void *w);
/* Returns true if all U and V are complete: if `whole` is, or for batches of tiny matrices, which always are. */
bool lm_solver_is_complete(const lm_solver_call *c, bool whole, int m, int n);
/* Computes U diag(s) V^T of a [m, n], which is destroyed: s [least], descending, U [m, m] and V [n, n], or of `least`
 * columns unless complete; without `vectors` both need memory all the same; info. */
lm_status lm_solver_gesvd(const lm_solver_call *c, bool vectors, bool whole, int m, int n, void *a, void *s, void *u,
                          void *v);
