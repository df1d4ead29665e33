/* Around the libraries' factorizations and transforms: what they are given, and what they leave to do. float32 and
 * float64 alone. All functions enqueue on the stream and return a cudaError_t; matrices are dense, one after another.
 */
#pragma once

#include "bad_values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x[i] *= factor. */
int lm_k_scale(int dtype, void *x, int64_t n, double factor, void *stream);
/* Lines of n / 2 + 1 pairs, times factor; those that stand for two of n entries, all but the first and for even n the
 * last, also times inner. real_ends: the imaginary part of the others becomes 0. */
int lm_k_half_lines(int dtype, void *x, int64_t n, int64_t lines, double factor, double inner, int real_ends,
                    void *stream);
/* `count` frames of n samples, each `hop` behind the last, in each of `batch` lines of `length` samples. */
typedef struct lm_frames {
  int64_t batch, length, count, n, hop;
} lm_frames;
/* Frames [batch, count, n] of x [batch, length], each times window [n]; and their sum where they stand. */
int lm_k_frames(int dtype, const void *x, const void *window, lm_frames f, void *to, void *stream);
int lm_k_overlap_add(int dtype, const void *frames, const void *window, lm_frames f, void *to, void *stream);
/* What stands `bytes` apart from `base` on, as addresses for batched routines. */
int lm_k_addresses(void **to, const void *base, int64_t bytes, int64_t count, void *stream);
/* The identity in each of `count` matrices [n, n]. */
int lm_k_identity(int dtype, void *to, int64_t n, int64_t count, void *stream);
/* Matrices of `size` elements with one that is infinite or NaN become 0, so that nothing runs in circles over them;
 * their flag becomes 1. */
int lm_k_only_finite(int dtype, void *a, int64_t size, int64_t count, int *flag, void *stream);
/* By the factors [n, n] and pivots [n] of each matrix: its determinant, or, with `sign`, that and the log of its
 * absolute value. One with info > 0 is singular, whatever else stands in its factors. A 0 on the diagonal becomes the
 * dtype's epsilon, so that the gradient has something near to divide by. */
int lm_k_determinants(int dtype, void *lu, const int *pivots, const int *info, int64_t n, int64_t count, void *sign,
                      void *det, void *stream);
/* Pivots [count, n] from 1 to rows, of which others are reported and replaced by their own place. */
int lm_k_check_pivots(int *pivots, int64_t n, int64_t count, int64_t rows, int bad_kind, lm_bad bad, void *stream);
/* P [m, m], row-major, of exchanges of row i with row pivots[i], k of them. */
int lm_k_permutations(int dtype, const int *pivots, int64_t k, int64_t m, int64_t count, int *scratch, void *p,
                      void *stream); /* room: [count, m] */
/* The lower triangle of [n, n], column-major, into the upper one. */
int lm_k_mirror(int dtype, void *a, int64_t n, int64_t count, void *stream);
/* info becomes 1 where the diagonal of R, in a column-major [m, n], m >= n, has a 0. */
int lm_k_zero_diagonals(int dtype, const void *a, int64_t m, int64_t n, int64_t count, int *info, void *stream);
/* Sums of squares of rows `from` to m - 1 of each of k columns of [m, k], column-major, into sums [count, k]. */
int lm_k_squares(int dtype, const void *b, int64_t from, int64_t m, int64_t k, int64_t count, void *sums, void *stream);

/* x [rows, columns], column-major, one each x_step elements: rows (by_rows), or else columns, times 1 / s, or 0 where s
 * is as good as 0: at most rtol times the first, or atol. s: [count, k]. rank, if not NULL: how many others there are.
 * atol, rtol: of each matrix; NULL is 0, and `rtol_all`, or 0 where atol is above 0. */
typedef struct lm_inverse_values {
  int dtype, by_rows;
  int64_t rows, columns, k, count, x_step;
  void *x;
  const void *s;
  const double *atol, *rtol;
  double rtol_all;
  int64_t *rank;
} lm_inverse_values;
int lm_k_times_inverse(const lm_inverse_values *job, void *stream);

#ifdef __cplusplus
}
#endif
