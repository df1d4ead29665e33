/* Prepares the arguments of the libraries' factorizations and transforms, and completes their results. float32 and
 * float64 alone. Functions enqueue on the stream and return a cudaError_t; matrices are dense, one after another. */
#pragma once

#include "bad_values.h"
#include "c_linkage.h"

/* Multiplies x [n] by factor. */
LM_C int lm_k_scale(int dtype, void *x, int64_t n, double factor, void *stream);
/* Multiplies lines of n / 2 + 1 complex numbers by factor; those that represent two of n entries (all but the first
 * and, for even n, the last) also by inner. real_ends: the others' imaginary parts become 0. */
LM_C int lm_k_half_lines(int dtype, void *x, int64_t n, int64_t lines, double factor, double inner, int real_ends,
                         void *stream);
/* A division of each of `batch` lines of `length` samples into `count` frames of n samples, `hop` samples apart. */
typedef struct lm_frames {
  int64_t batch, length, count, n, hop;
} lm_frames;
/* Copy x [batch, length] to frames [batch, count, n] times window [n]; and add frames times window into to. */
LM_C int lm_k_frames(int dtype, const void *x, const void *window, lm_frames f, void *to, void *stream);
LM_C int lm_k_overlap_add(int dtype, const void *frames, const void *window, lm_frames f, void *to, void *stream);
/* Writes the addresses of `count` matrices, `bytes` apart from `base` on, for batched routines. */
LM_C int lm_k_addresses(void **to, const void *base, int64_t bytes, int64_t count, void *stream);
/* Sets each of `count` matrices [n, n] to the identity. */
LM_C int lm_k_identity(int dtype, void *to, int64_t n, int64_t count, void *stream);
/* Zeroes matrices of `size` elements that have an infinite or NaN one, so that no iteration runs forever, and sets
 * their flag to 1. */
LM_C int lm_k_only_finite(int dtype, void *a, int64_t size, int64_t count, int *flag, void *stream);
/* Computes each matrix's determinant from its factors [n, n] and pivots [n] or, with `sign`, its sign and the log of
 * its absolute value. A matrix with info > 0 is singular, whatever its factors are. A 0 on the diagonal becomes the
 * dtype's epsilon, so that the gradient has something near to divide by. */
LM_C int lm_k_determinants(int dtype, void *lu, const int *pivots, const int *info, int64_t n, int64_t count,
                           void *sign, void *det, void *stream);
/* Checks pivots [count, n], 1 to rows: others are reported and become their own index. */
LM_C int lm_k_check_pivots(int *pivots, int64_t n, int64_t count, int64_t rows, int bad_kind, lm_bad bad, void *stream);
/* Writes P [m, m], row-major, of k exchanges of row i with row pivots[i]. */
LM_C int lm_k_permutations(int dtype, const int *pivots, int64_t k, int64_t m, int64_t count, int *scratch, void *p,
                           void *stream); /* scratch: [count, m] */
/* Copies the lower triangle of [n, n], column-major, to the upper one. */
LM_C int lm_k_mirror(int dtype, void *a, int64_t n, int64_t count, void *stream);
/* Sets info to 1 where the diagonal of R, in a column-major [m, n], m >= n, has a 0. */
LM_C int lm_k_zero_diagonals(int dtype, const void *a, int64_t m, int64_t n, int64_t count, int *info, void *stream);
/* Sums the squares of rows `from` to m - 1 of each of k columns of [m, k], column-major, into sums [count, k]. */
LM_C int lm_k_squares(int dtype, const void *b, int64_t from, int64_t m, int64_t k, int64_t count, void *sums,
                      void *stream);

/* Arguments of lm_k_times_inverse: x [rows, columns], column-major, a matrix each x_step elements; its rows (by_rows)
 * or columns are divided by s [count, k], or become 0 where s is at most rtol times the first s, or atol. rank (may be
 * NULL): the number of other s. atol, rtol: one for each matrix; NULL: 0, and `rtol_all` (0 if atol is above 0). */
typedef struct lm_inverse_values {
  int dtype, by_rows;
  int64_t rows, columns, k, count, x_step;
  void *x;
  const void *s;
  const double *atol, *rtol;
  double rtol_all;
  int64_t *rank;
} lm_inverse_values;
LM_C int lm_k_times_inverse(const lm_inverse_values *job, void *stream);
