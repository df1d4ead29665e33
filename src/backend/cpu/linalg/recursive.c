/* LU factors and solutions by a triangle, by halves: most of the work becomes products of matrices, which have threads
 * and, in float32, oneDNN's speed. Column-major. */
#include "backend/cpu/linalg/recursive.h"

#include <math.h>

#include "backend/cpu/matmul/gemm.h"

enum { SMALL = 64, TINY = 16 };

/* Matrices of TINY rows at most, for which a call of LAPACK costs more than the work. */
#define TINY_LOOPS(REAL)                                                                                             \
  static int tiny_lu_##REAL(int m, int n, REAL *a, int lda, int *pivots) {                                           \
    int info = 0;                                                                                                    \
    for (int k = 0; k < m && k < n; k++) {                                                                           \
      REAL *column = a + (size_t)k * (size_t)lda;                                                                    \
      int best = k;                                                                                                  \
      for (int i = k + 1; i < m; i++)                                                                                \
        if (fabs((double)column[i]) > fabs((double)column[best])) best = i;                                          \
      pivots[k] = best + 1;                                                                                          \
      if (column[best] == 0) {                                                                                       \
        if (info == 0) info = k + 1;                                                                                 \
        continue;                                                                                                    \
      }                                                                                                              \
      for (int c = 0; c < n && best != k; c++) {                                                                     \
        REAL *row = a + (size_t)c * (size_t)lda, kept = row[k];                                                      \
        row[k] = row[best];                                                                                          \
        row[best] = kept;                                                                                            \
      }                                                                                                              \
      for (int i = k + 1; i < m; i++) column[i] /= column[k];                                                        \
      for (int c = k + 1; c < n; c++) {                                                                              \
        REAL *to = a + (size_t)c * (size_t)lda;                                                                      \
        for (int i = k + 1; i < m; i++) to[i] -= column[i] * to[k];                                                  \
      }                                                                                                              \
    }                                                                                                                \
    return info;                                                                                                     \
  }                                                                                                                  \
  static void tiny_triangle_##REAL(const lm_triangle *t, int n, int k, const REAL *a, int lda, REAL *b, int ldb) {   \
    bool down = t->upper == t->turned; /* op(a) is lower triangular */                                               \
    size_t row = t->turned ? (size_t)lda : 1, column = t->turned ? 1 : (size_t)lda;                                  \
    for (int c = 0; c < k; c++, b += ldb) {                                                                          \
      for (int s = 0; s < n; s++) {                                                                                  \
        int i = down ? s : n - 1 - s;                                                                                \
        REAL x = t->ones ? b[i] : b[i] / a[(size_t)i * (row + column)];                                              \
        b[i] = x;                                                                                                    \
        for (int r = down ? i + 1 : 0; r < (down ? n : i); r++) b[r] -= a[(size_t)r * row + (size_t)i * column] * x; \
      }                                                                                                              \
    }                                                                                                                \
  }
TINY_LOOPS(float)
TINY_LOOPS(double)

static void *at(lm_dtype dtype, void *a, int ld, int row, int column) {
  return (char *)a + lm_dtype_size(dtype) * ((size_t)row + (size_t)column * (size_t)ld);
}

/* C -= A B, C [m, n], A [m, k] or, turned, [k, m]. Transposed it is a product of row-major matrices. */
static lm_status subtract_product(lm_dtype dtype, int m, int n, int k, bool turned, const void *a, int lda,
                                  const void *b, int ldb, void *c, int ldc) {
  return lm_cpu_gemm(&(lm_cpu_gemm_job){.dtype = dtype,
                                        .device = LM_DEVICE(LM_CPU, 0),
                                        .batch = 1,
                                        .m = n,
                                        .n = m,
                                        .k = k,
                                        .a = b,
                                        .lda = ldb,
                                        .b = a,
                                        .ldb = lda,
                                        .tb = turned,
                                        .c = c,
                                        .ldc = ldc,
                                        .alpha = -1,
                                        .beta = 1});
}

lm_status lm_solve_triangle(const lm_triangle *t, int n, int k, const void *a, int lda, void *b, int ldb) {
  lm_status status = LM_OK;
  lm_scalar one = lm_scalar_of(t->dtype, 1);
  int half = n / 2, rest = n - half;
  if (n <= TINY && k <= TINY) {
    if (t->dtype == LM_F64)
      tiny_triangle_double(t, n, k, a, lda, b, ldb);
    else
      tiny_triangle_float(t, n, k, a, lda, b, ldb);
    return LM_OK;
  }
  if (n <= SMALL) {
    LM_CALL(t->dtype, trsm, "L", t->upper ? "U" : "L", t->turned ? "T" : "N", t->ones ? "U" : "N", &n, &k, &one, a,
            &lda, b, &ldb, 1, 1, 1, 1);
    return LM_OK;
  }
  void *lower_right = at(t->dtype, (void *)a, lda, half, half), *b2 = at(t->dtype, b, ldb, half, 0);
  const void *beside = t->upper ? at(t->dtype, (void *)a, lda, 0, half) : at(t->dtype, (void *)a, lda, half, 0);
  if (t->upper == t->turned) { /* from above: op(a) is lower triangular */
    TRY(lm_solve_triangle(t, half, k, a, lda, b, ldb));
    TRY(subtract_product(t->dtype, rest, k, half, t->turned, beside, lda, b, ldb, b2, ldb));
    TRY(lm_solve_triangle(t, rest, k, lower_right, lda, b2, ldb));
  } else {
    TRY(lm_solve_triangle(t, rest, k, lower_right, lda, b2, ldb));
    TRY(subtract_product(t->dtype, half, k, rest, t->turned, beside, lda, b2, ldb, b, ldb));
    TRY(lm_solve_triangle(t, half, k, a, lda, b, ldb));
  }
done:
  return status;
}

lm_status lm_factor_lu(lm_dtype dtype, int m, int n, void *a, int lda, int *pivots, int *info) {
  lm_status status = LM_OK;
  int least = m < n ? m : n, half = least / 2, rest = n - half, first = 1, step = 1, below = 0;
  *info = 0;
  if (m <= TINY && n <= TINY) {
    *info = dtype == LM_F64 ? tiny_lu_double(m, n, a, lda, pivots) : tiny_lu_float(m, n, a, lda, pivots);
    return LM_OK;
  }
  if (least <= SMALL) {
    LM_CALL(dtype, getrf, &m, &n, a, &lda, pivots, info);
    return LM_OK;
  }
  void *right = at(dtype, a, lda, 0, half), *corner = at(dtype, a, lda, half, half);
  TRY(lm_factor_lu(dtype, m, half, a, lda, pivots, info));
  LM_CALL(dtype, laswp, &rest, right, &lda, &first, &half, pivots, &step);
  TRY(lm_solve_triangle(&(lm_triangle){.dtype = dtype, .ones = true}, half, rest, a, lda, right, lda));
  TRY(subtract_product(dtype, m - half, rest, half, false, at(dtype, a, lda, half, 0), lda, right, lda, corner, lda));
  TRY(lm_factor_lu(dtype, m - half, rest, corner, lda, pivots + half, &below));
  if (*info == 0 && below > 0) *info = below + half;
  for (int i = half; i < least; i++) pivots[i] += half;
  first = half + 1;
  LM_CALL(dtype, laswp, &half, a, &lda, &first, &least, pivots, &step);
done:
  return status;
}
