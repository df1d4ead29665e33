#include "backend/cpu/linalg/recursive.h"

#include <string.h>

#include "backend/cpu/matmul/gemm.h"

static void *item_at(lm_dtype dtype, const void *a, int ld, int row, int column) {
  return (char *)a + lm_dtype_size(dtype) * ((size_t)row * (size_t)ld + (size_t)column);
}

/* Returns the size of the first of two parts, in whole leaves. */
static int half_of(int n) { return lm_round_up(n / 2, LM_LEAF); }

/* Computes C = beta C - A B: C [m, n], A [m, k] or, transposed, [k, m]. */
static lm_status subtract_product(lm_dtype dtype, int m, int n, int k, bool transposed, const void *a, int lda,
                                  const void *b, int ldb, double beta, void *c, int ldc) {
  const lm_cpu_gemm_job job = lm_cpu_gemm_job_of(dtype, m, n, k, -1, lm_gemm_matrix_of(a, lda, transposed),
                                                 lm_gemm_matrix_of(b, ldb, false), beta, c, ldc);
  return lm_cpu_gemm(&job);
}

static lm_status solve_columns(const lm_trsm_job *t, int n, int k, const void *a, int lda, void *b, int ldb) {
  if (n <= LM_LEAF) {
    lm_trsm_loops_of(t->dtype)->solve(t, n, k, a, lda, b, ldb);
    return LM_OK;
  }
  int half = half_of(n), rest = n - half;
  void *lower_right = item_at(t->dtype, a, lda, half, half), *b2 = item_at(t->dtype, b, ldb, half, 0);
  const void *beside = t->upper ? item_at(t->dtype, a, lda, 0, half) : item_at(t->dtype, a, lda, half, 0);
  if (t->upper == t->transposed) { /* from above: op(a) is lower triangular */
    NEED(solve_columns(t, half, k, a, lda, b, ldb));
    NEED(subtract_product(t->dtype, rest, k, half, t->transposed, beside, lda, b, ldb, 1, b2, ldb));
    NEED(solve_columns(t, rest, k, lower_right, lda, b2, ldb));
  } else {
    NEED(solve_columns(t, rest, k, lower_right, lda, b2, ldb));
    NEED(subtract_product(t->dtype, half, k, rest, t->transposed, beside, lda, b2, ldb, 1, b, ldb));
    NEED(solve_columns(t, half, k, a, lda, b, ldb));
  }
  return LM_OK;
}

/* Columns of a thread's part are multiples of a grain: enough for fast products. */
enum { SOLVED_GRAIN = 64, UPDATED_GRAIN = 32 };

static int column_parts(int columns, int grain, double work) {
  int threads = lm_threads_for(work), grains = (int)lm_ceil_div(columns, grain);
  return threads < grains ? threads : grains;
}

static int part_begin(int columns, int grain, int64_t part, int parts) {
  int64_t begin = lm_part_begin(lm_ceil_div(columns, grain), part, parts) * grain;
  return begin < columns ? (int)begin : columns;
}

typedef struct solving {
  const lm_trsm_job *t;
  int n, k, lda, ldb, parts;
  const void *a;
  void *b;
} solving;

static void solve_parts(void *ctx, int64_t first, int64_t last) {
  solving *s = ctx;
  int begin = part_begin(s->k, SOLVED_GRAIN, first, s->parts);
  int columns = part_begin(s->k, SOLVED_GRAIN, last, s->parts) - begin;
  lm_parallel_note(
      solve_columns(s->t, s->n, columns, s->a, s->lda, item_at(s->t->dtype, s->b, s->ldb, 0, begin), s->ldb));
}

lm_status lm_trsm_solve(const lm_trsm_job *t, int n, int k, const void *a, int lda, void *b, int ldb) {
  double work = (double)n * n * k / 200;
  int parts = column_parts(k, SOLVED_GRAIN, work);
  if (parts <= 1) return solve_columns(t, n, k, a, lda, b, ldb);
  solving job = {.t = t, .n = n, .k = k, .lda = lda, .ldb = ldb, .parts = parts, .a = a, .b = b};
  return lm_parallel(parts, work, 0, solve_parts, &job);
}

lm_status lm_invert_lower(lm_dtype dtype, int n, const void *a, int lda, void *x, int ldx) {
  const lm_trsm_job lower = {.dtype = dtype, .ones = true};
  if (n <= LM_LEAF) {
    for (int i = 0; i < n; i++) lm_scalar_put(dtype, x, (int64_t)i * (ldx + 1), 1);
    return lm_trsm_solve(&lower, n, n, a, lda, x, ldx);
  }
  int half = half_of(n), rest = n - half;
  const void *corner = item_at(dtype, a, lda, half, half), *below = item_at(dtype, a, lda, half, 0);
  void *x_below = item_at(dtype, x, ldx, half, 0);
  NEED(lm_invert_lower(dtype, half, a, lda, x, ldx));
  NEED(subtract_product(dtype, rest, half, half, false, below, lda, x, ldx, 0, x_below, ldx));
  NEED(lm_trsm_solve(&lower, rest, half, corner, lda, x_below, ldx));
  return lm_invert_lower(dtype, rest, corner, lda, item_at(dtype, x, ldx, half, half), ldx);
}

static void swap_bytes(char *a, char *b, size_t bytes) {
  char kept[1024];
  for (size_t i = 0; i < bytes; i += sizeof kept) {
    size_t n = bytes - i < sizeof kept ? bytes - i : sizeof kept;
    memcpy(kept, a + i, n);
    memcpy(a + i, b + i, n);
    memcpy(b + i, kept, n);
  }
}

void lm_swap_rows(lm_dtype dtype, int columns, void *a, int lda, const int *pivots, int first, int end, bool back) {
  for (int s = first; s < end; s++) {
    int i = back ? first + end - 1 - s : s;
    if (pivots[i] - 1 == i) continue;
    swap_bytes(item_at(dtype, a, lda, i, 0), item_at(dtype, a, lda, pivots[i] - 1, 0),
               lm_dtype_size(dtype) * (size_t)columns);
  }
}

size_t lm_lu_scratch(lm_dtype dtype, int m, int n) {
  size_t columns = (size_t)(n < LM_LEAF ? n : LM_LEAF);
  return lm_dtype_size(dtype) * columns * ((size_t)m + 64 / lm_dtype_size(dtype)) + 64;
}

/* The update of n columns beside a factored left part [m, half]: their rows are exchanged, the upper ones become U's,
 * and the product is subtracted from the lower ones. */
typedef struct lu_beside {
  lm_dtype dtype;
  int m, half, lda;
  const void *left;
  const int *pivots;
  int n, parts;
  void *right;
} lu_beside;

static void update_parts(void *ctx, int64_t first, int64_t last) {
  lu_beside *j = ctx;
  const lm_trsm_job lower = {.dtype = j->dtype, .ones = true};
  int begin = part_begin(j->n, UPDATED_GRAIN, first, j->parts);
  int columns = part_begin(j->n, UPDATED_GRAIN, last, j->parts) - begin;
  void *its = item_at(j->dtype, j->right, j->lda, 0, begin);
  const void *below = item_at(j->dtype, j->left, j->lda, j->half, 0);
  lm_cpu_gemm_job product =
      lm_cpu_gemm_job_of(j->dtype, j->m - j->half, columns, j->half, -1, lm_gemm_matrix_of(below, j->lda, false),
                         lm_gemm_matrix_of(its, j->lda, false), 1, item_at(j->dtype, its, j->lda, j->half, 0), j->lda);
  product.alone = true;
  lm_swap_rows(j->dtype, columns, its, j->lda, j->pivots, 0, j->half, false);
  lm_parallel_note(solve_columns(&lower, j->half, columns, j->left, j->lda, its, j->lda));
  lm_parallel_note(lm_cpu_gemm(&product));
}

/* Updates j's columns. A thread takes some of them through all three steps, so that threads meet only at the end. Runs
 * on one thread below half a millisecond of work, since moving columns between cores takes longer. */
static lm_status update_beside(lu_beside *j) {
  double work = (double)j->m * j->n * j->half / 50;
  if (work < 500e3) work = 0;
  j->parts = column_parts(j->n, UPDATED_GRAIN, work);
  return lm_parallel(j->parts, work, 0, update_parts, j);
}

lm_status lm_factor_lu(lm_dtype dtype, int m, int n, void *a, int lda, int *pivots, void *scratch, int *info) {
  int min_mn = m < n ? m : n, below = 0;
  if (n <= LM_LEAF) {
    *info = lm_trsm_loops_of(dtype)->lu(m, n, a, lda, pivots, scratch);
    return LM_OK;
  }
  int half = min_mn > LM_LEAF ? half_of(min_mn) : min_mn, rest = n - half;
  NEED(lm_factor_lu(dtype, m, half, a, lda, pivots, scratch, info));
  NEED(update_beside(&(lu_beside){.dtype = dtype,
                                  .m = m,
                                  .half = half,
                                  .lda = lda,
                                  .left = a,
                                  .pivots = pivots,
                                  .n = rest,
                                  .right = item_at(dtype, a, lda, 0, half)}));
  if (m == half) return LM_OK;
  NEED(lm_factor_lu(dtype, m - half, rest, item_at(dtype, a, lda, half, half), lda, pivots + half, scratch, &below));
  if (*info == 0 && below > 0) *info = below + half;
  for (int i = half; i < min_mn; i++) pivots[i] += half;
  lm_swap_rows(dtype, half, a, lda, pivots, half, min_mn, false);
  return LM_OK;
}

/* Computes the upper triangle of C -= A^T A: C [n, n], A [k, n]. */
static lm_status subtract_square(lm_dtype dtype, int n, int k, const void *a, int lda, void *c, int ldc) {
  int half = half_of(n), rest = n - half;
  const void *beside = item_at(dtype, a, lda, 0, half);
  if (n <= 4 * LM_LEAF) return subtract_product(dtype, n, n, k, true, a, lda, a, lda, 1, c, ldc);
  NEED(subtract_square(dtype, half, k, a, lda, c, ldc));
  NEED(subtract_product(dtype, half, rest, k, true, a, lda, beside, lda, 1, item_at(dtype, c, ldc, 0, half), ldc));
  return subtract_square(dtype, rest, k, beside, lda, item_at(dtype, c, ldc, half, half), ldc);
}

lm_status lm_factor_cholesky(lm_dtype dtype, int n, void *a, int lda, int *info) {
  if (n <= LM_LEAF) {
    *info = lm_trsm_loops_of(dtype)->cholesky(n, a, lda, 1);
    return LM_OK;
  }
  int half = half_of(n), rest = n - half;
  void *right = item_at(dtype, a, lda, 0, half), *corner = item_at(dtype, a, lda, half, half);
  NEED(lm_factor_cholesky(dtype, half, a, lda, info));
  if (*info != 0) return LM_OK;
  NEED(
      lm_trsm_solve(&(lm_trsm_job){.dtype = dtype, .upper = true, .transposed = true}, half, rest, a, lda, right, lda));
  NEED(subtract_square(dtype, rest, half, right, lda, corner, lda));
  NEED(lm_factor_cholesky(dtype, rest, corner, lda, info));
  if (*info != 0) *info += half;
  return LM_OK;
}
