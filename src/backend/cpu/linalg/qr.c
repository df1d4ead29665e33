/* Computes QR by Householder's reflections. Columns of A and Q are contiguous; reflections of PANEL columns are applied
 * to others together, as products of matrices: H1 H2 … = I - V T V^T (Schreiber and Van Loan, A storage-efficient WY
 * representation for products of Householder transformations, 1989). */
#include <string.h>

#include "backend/cpu/isa/linalg/householder.h"
#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"

enum { PANEL = 32, FEW = 8 }; /* up to FEW reflections are applied one by one */

typedef struct qr_job {
  lm_dtype dtype;
  size_t item;
  int m, n, min_mn, columns; /* columns of Q; 0: not requested */
  bool alone;                /* true: products run on this thread */
  const lm_tensor *a, *q, *r;
} qr_job;

/* One panel's reflections as a matrix, and scratch memory. */
typedef struct panel {
  int first, count, length;  /* reflections; entries of a v */
  char *v, *square, *w, *wt; /* [count, length], [count, count], twice [others, count] */
} panel;

static size_t elements_of_scratch(const qr_job *j) {
  size_t others = (size_t)(j->n > j->columns ? j->n : j->columns), panels = (size_t)lm_ceil_div(j->min_mn, PANEL);
  return (size_t)j->min_mn + PANEL * ((size_t)j->m + PANEL + PANEL * panels + 2 * others) + 64;
}

/* Computes C = beta C + alpha A B, A [m, k], B [k, n] or, transposed, [n, k]. */
static lm_status product(const qr_job *j, int m, int n, int k, double alpha, const void *a, int lda, const void *b,
                         int ldb, bool transposed, double beta, void *c, int ldc) {
  const lm_cpu_gemm_job g = {.dtype = j->dtype,
                             .device = LM_DEVICE(LM_CPU, 0),
                             .batch = 1,
                             .m = m,
                             .n = n,
                             .k = k,
                             .tb = transposed,
                             .a = a,
                             .lda = lda,
                             .b = b,
                             .ldb = ldb,
                             .c = c,
                             .ldc = ldc,
                             .alpha = alpha,
                             .beta = beta,
                             .alone = j->alone};
  return lm_cpu_gemm(&g);
}

/* Fills p->v with the v of a panel, their ones, and zeros before these. */
static void fill_v(const qr_job *j, const panel *p, const char *a) {
  for (int c = 0; c < p->count; c++) {
    char *v = p->v + j->item * (size_t)c * (size_t)p->length;
    const char *column = a + j->item * ((size_t)(p->first + c) * (size_t)j->m + (size_t)p->first);
    memset(v, 0, j->item * (size_t)c);
    memcpy(v + j->item * (size_t)c, column + j->item * (size_t)c, j->item * (size_t)(p->length - c));
    lm_scalar_put(j->dtype, v, c, 1);
  }
}

/* Reflects `rows` rows of x, each a column of the matrix: x -= (x V) T V^T, or by the transpose of T. */
static lm_status reflect(const qr_job *j, const panel *p, const char *T, bool transposed, int rows, char *x) {
  int k = p->count, length = p->length;
  if (rows == 0) return LM_OK;
  NEED(product(j, rows, k, length, 1, x, j->m, p->v, length, true, 0, p->w, k));
  NEED(product(j, rows, k, k, 1, p->w, k, T, k, transposed, 0, p->wt, k));
  return product(j, rows, length, k, -1, p->wt, k, p->v, length, false, 1, x, j->m);
}

static char *entry(const qr_job *j, char *a, int column, int row) {
  return a + j->item * ((size_t)column * (size_t)j->m + (size_t)row);
}

/* Computes Q = H1 H2 … times the first columns of the identity, from the last panel on. */
static lm_status make_q(const qr_job *j, char *a, const char *tau, const char *T, panel p, char *q) {
  memset(q, 0, j->item * (size_t)j->m * (size_t)j->columns);
  for (int c = 0; c < j->columns; c++) lm_scalar_put(j->dtype, q, (int64_t)c * (j->m + 1), 1);
  for (int c = j->min_mn - 1; c >= 0 && j->min_mn <= FEW; c--)
    lm_householder_loops_of(j->dtype)->reflect(j->m - c, entry(j, a, c, c), lm_scalar_at(j->dtype, tau, c),
                                               j->columns - c, entry(j, q, c, c), j->m);
  for (int last = (j->min_mn - 1) / PANEL; last >= 0 && j->min_mn > FEW; last--) {
    p.first = last * PANEL;
    p.count = j->min_mn - p.first < PANEL ? j->min_mn - p.first : PANEL;
    p.length = j->m - p.first;
    fill_v(j, &p, a);
    NEED(reflect(j, &p, T + j->item * PANEL * PANEL * (size_t)last, true, j->columns - p.first,
                 entry(j, q, p.first, p.first)));
  }
  return LM_OK;
}

lm_status lm_reflect_rows(lm_dtype dtype, int n, int ld, const void *a, const void *tau, int count, void *rows,
                          void *work) {
  const qr_job j = {.dtype = dtype, .item = lm_dtype_size(dtype), .m = ld};
  char *T = work;
  panel p = {.square = T + j.item * PANEL * PANEL};
  p.w = p.square + j.item * PANEL * PANEL;
  p.wt = p.w + j.item * PANEL * (size_t)count;
  p.v = p.wt + j.item * PANEL * (size_t)count;
  for (int last = (n - 1) / PANEL; last >= 0; last--) {
    p.first = last * PANEL;
    p.count = n - p.first < PANEL ? n - p.first : PANEL;
    p.length = n - p.first;
    fill_v(&j, &p, a);
    NEED(product(&j, p.count, p.count, p.length, 1, p.v, p.length, p.v, p.length, true, 0, p.square, p.count));
    lm_householder_loops_of(dtype)->combine(p.count, p.square, (const char *)tau + j.item * (size_t)p.first, T);
    NEED(reflect(&j, &p, T, true, count, (char *)rows + j.item * (size_t)p.first));
  }
  return LM_OK;
}

static lm_status factor(const qr_job *j, char *a, char *q, char *work) {
  const struct lm_householder_loops *loops = lm_householder_loops_of(j->dtype);
  size_t others = (size_t)(j->n > j->columns ? j->n : j->columns), panels = (size_t)lm_ceil_div(j->min_mn, PANEL);
  char *tau = work, *T = tau + j->item * (size_t)j->min_mn;
  panel p = {.square = T + j->item * PANEL * PANEL * panels};
  p.w = p.square + j->item * PANEL * PANEL;
  p.wt = p.w + j->item * PANEL * others;
  p.v = p.wt + j->item * PANEL * others;
  for (; p.first < j->min_mn; p.first += PANEL, T += j->item * PANEL * PANEL) {
    p.count = j->min_mn - p.first < PANEL ? j->min_mn - p.first : PANEL;
    p.length = j->m - p.first;
    char *its_tau = tau + j->item * (size_t)p.first;
    int after = j->n - p.first - p.count;
    bool all = j->min_mn <= FEW; /* few: columns after the panel are reflected one by one */
    loops->factor(p.length, p.count, entry(j, a, p.first, p.first), j->m, its_tau);
    for (int c = 0; c < p.count && all; c++)
      loops->reflect(p.length - c, entry(j, a, p.first + c, p.first + c), lm_scalar_at(j->dtype, its_tau, c), after,
                     entry(j, a, p.first + p.count, p.first + c), j->m);
    if (all) continue;
    fill_v(j, &p, a);
    NEED(product(j, p.count, p.count, p.length, 1, p.v, p.length, p.v, p.length, true, 0, p.square, p.count));
    loops->combine(p.count, p.square, its_tau, T);
    NEED(reflect(j, &p, T, false, after, entry(j, a, p.first + p.count, p.first)));
  }
  if (q) NEED(make_q(j, a, tau, tau + j->item * (size_t)j->min_mn, p, q));
  return LM_OK;
}

static int qr_one(const void *job, int64_t i, char *work) {
  const qr_job *j = job;
  char *a = lm_matrix_at(j->a, i), *r = lm_matrix_at(j->r, i);
  int rows = (int)j->r->size[j->r->ndim - 2];
  lm_status status = factor(j, a, j->q ? lm_matrix_at(j->q, i) : NULL, work);
  if (status != LM_OK) return lm_matrix_failed(status);
  for (int c = 0; c < j->n; c++) {
    int kept = c + 1 < rows ? c + 1 : rows;
    memcpy(r + j->item * (size_t)c * (size_t)rows, entry(j, a, c, 0), j->item * (size_t)kept);
    memset(r + j->item * ((size_t)c * (size_t)rows + (size_t)kept), 0, j->item * (size_t)(rows - kept));
  }
  return 0;
}

lm_status lm_cpu_linalg_qr(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_qr_args *a = args;
  const lm_tensor *x = a->A;
  lm_tensor *copy = NULL;
  lm_bad_matrix bad;
  qr_job j = {.dtype = x->dtype,
              .item = lm_dtype_size(x->dtype),
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .r = out[1]};
  j.min_mn = j.m < j.n ? j.m : j.n;
  if (a->mode != LM_QR_R) {
    j.q = out[0];
    j.columns = (int)out[0]->size[out[0]->ndim - 1];
  }
  double work = 2.0 * j.m * j.n * (j.min_mn + j.columns);
  j.alone = work < 1e9;
  TRY(lm_column_major(x, &copy));
  j.a = copy;
  status = lm_each_matrix(lm_matrix_count(x), work, j.item * elements_of_scratch(&j), qr_one, &j, &bad);
done:
  lm_release(copy);
  return status;
}
