/* Computes QR by Householder's reflections. Columns of A and Q are contiguous; reflections of PANEL columns are applied
 * to others together, as products of matrices: H1 H2 … = I - V T V^T (Schreiber and Van Loan, A storage-efficient WY
 * representation for products of Householder transformations, 1989). */
#include <string.h>

#include "backend/cpu/isa/linalg/householder.h"
#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"
#include "op_args_linalg.h"

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
  int first, count, length;       /* reflections; entries of a v */
  void *tau, *T;                  /* one for each reflection; [PANEL, PANEL] for each panel */
  void *v, *square, *products[2]; /* [count, length], [count, count], [others, count] */
} panel;

/* Sets p's scratch memory for `panels` panels, which are applied to `others` columns; returns its bytes. */
static size_t lay_out(const qr_job *j, int panels, int others, char *memory, panel *p) {
  const size_t row = PANEL * j->item, square = PANEL * row;
  return lm_memory_divide(memory, 6,
                          (lm_memory_part[]){{&p->tau, (size_t)panels * row},
                                             {&p->T, (size_t)panels * square},
                                             {&p->square, square},
                                             {&p->products[0], row * (size_t)others},
                                             {&p->products[1], row * (size_t)others},
                                             {&p->v, row * (size_t)j->m}});
}

static int panels_of(const qr_job *j) { return (int)lm_ceil_div(j->min_mn, PANEL); }
static size_t lay_out_all(const qr_job *j, char *memory, panel *p) {
  return lay_out(j, panels_of(j), lm_max(j->n, j->columns), memory, p);
}

/* Sets p to panel `index` of n reflections, whose columns have `rows` rows. */
static void set_panel(panel *p, int index, int n, int rows) {
  p->first = index * PANEL;
  p->count = lm_min(n - p->first, PANEL);
  p->length = rows - p->first;
}

/* Computes C = beta C + alpha A B, A [m, k], B [k, n] or, transposed, [n, k]. */
static lm_status product(const qr_job *j, int m, int n, int k, double alpha, const void *a, int lda, const void *b,
                         int ldb, bool transposed, double beta, void *c, int ldc) {
  lm_cpu_gemm_job g = lm_cpu_gemm_job_of(j->dtype, m, n, k, alpha, lm_gemm_matrix_of(a, lda, false),
                                         lm_gemm_matrix_of(b, ldb, transposed), beta, c, ldc);
  g.alone = j->alone;
  return lm_cpu_gemm(&g);
}

static char *entry(const qr_job *j, char *a, int column, int row) {
  return a + j->item * ((size_t)column * (size_t)j->m + (size_t)row);
}

/* Fills p->v with the v of a panel, their ones, and zeros before these. */
static void fill_v(const qr_job *j, const panel *p, char *a) {
  for (int c = 0; c < p->count; c++) {
    char *v = (char *)p->v + j->item * (size_t)c * (size_t)p->length;
    memset(v, 0, j->item * (size_t)c);
    memcpy(v + j->item * (size_t)c, entry(j, a, p->first + c, p->first + c), j->item * (size_t)(p->length - c));
    lm_scalar_put(j->dtype, v, c, 1);
  }
}

/* Computes a panel's T from its v and tau. */
static lm_status combine(const qr_job *j, const panel *p, const void *tau, void *T) {
  NEED(product(j, p->count, p->count, p->length, 1, p->v, p->length, p->v, p->length, true, 0, p->square, p->count));
  lm_householder_loops_of(j->dtype)->combine(p->count, p->square, tau, T);
  return LM_OK;
}

/* Reflects `rows` rows of x, each a column of the matrix: x -= (x V) T V^T, or by the transpose of T. */
static lm_status reflect(const qr_job *j, const panel *p, const char *T, bool transposed, int rows, char *x) {
  int k = p->count, length = p->length;
  if (rows == 0) return LM_OK;
  NEED(product(j, rows, k, length, 1, x, j->m, p->v, length, true, 0, p->products[0], k));
  NEED(product(j, rows, k, k, 1, p->products[0], k, T, k, transposed, 0, p->products[1], k));
  return product(j, rows, length, k, -1, p->products[1], k, p->v, length, false, 1, x, j->m);
}

/* Computes Q = H1 H2 … times the first columns of the identity, from the last panel on. */
static lm_status make_q(const qr_job *j, char *a, panel p, char *q) {
  memset(q, 0, j->item * (size_t)j->m * (size_t)j->columns);
  for (int c = 0; c < j->columns; c++) lm_scalar_put(j->dtype, q, (int64_t)c * (j->m + 1), 1);
  for (int c = j->min_mn - 1; c >= 0 && j->min_mn <= FEW; c--)
    lm_householder_loops_of(j->dtype)->reflect(j->m - c, entry(j, a, c, c), lm_real_at(j->dtype, p.tau, c),
                                               j->columns - c, entry(j, q, c, c), j->m);
  for (int last = panels_of(j) - 1; last >= 0 && j->min_mn > FEW; last--) {
    set_panel(&p, last, j->min_mn, j->m);
    fill_v(j, &p, a);
    NEED(reflect(j, &p, (char *)p.T + j->item * PANEL * PANEL * (size_t)last, true, j->columns - p.first,
                 entry(j, q, p.first, p.first)));
  }
  return LM_OK;
}

lm_status lm_reflect_rows(lm_dtype dtype, int n, int ld, const void *a, const void *tau, int count, void *rows,
                          void *work) {
  const qr_job j = {.dtype = dtype, .item = lm_dtype_size(dtype), .m = ld};
  panel p;
  lay_out(&j, 1, count, work, &p);
  for (int last = (n - 1) / PANEL; last >= 0; last--) {
    set_panel(&p, last, n, n);
    fill_v(&j, &p, (char *)a);
    NEED(combine(&j, &p, (const char *)tau + j.item * (size_t)p.first, p.T));
    NEED(reflect(&j, &p, p.T, true, count, (char *)rows + j.item * (size_t)p.first));
  }
  return LM_OK;
}

static lm_status factor(const qr_job *j, char *a, char *q, char *work) {
  const struct lm_householder_loops *loops = lm_householder_loops_of(j->dtype);
  const bool few = j->min_mn <= FEW; /* columns after the panel are reflected one by one */
  panel p;
  lay_out_all(j, work, &p);
  for (int i = 0; i < panels_of(j); i++) {
    set_panel(&p, i, j->min_mn, j->m);
    char *tau = (char *)p.tau + j->item * (size_t)p.first, *T = (char *)p.T + j->item * PANEL * PANEL * (size_t)i;
    const int after = j->n - p.first - p.count;
    loops->factor(p.length, p.count, entry(j, a, p.first, p.first), j->m, tau);
    for (int c = 0; c < p.count && few; c++)
      loops->reflect(p.length - c, entry(j, a, p.first + c, p.first + c), lm_real_at(j->dtype, tau, c), after,
                     entry(j, a, p.first + p.count, p.first + c), j->m);
    if (few) continue;
    fill_v(j, &p, a);
    NEED(combine(j, &p, tau, T));
    NEED(reflect(j, &p, T, false, after, entry(j, a, p.first + p.count, p.first)));
  }
  return q ? make_q(j, a, p, q) : LM_OK;
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

lm_status lm_cpu_linalg_qr(const lm_linalg_qr_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->A;
  LM_OWNED *copy = NULL;
  lm_bad_matrix bad;
  panel p;
  NEED(lm_column_major(x, &copy));
  qr_job j = {.dtype = x->dtype,
              .item = lm_dtype_size(x->dtype),
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .a = copy,
              .r = out[1]};
  j.min_mn = lm_min(j.m, j.n);
  if (a->mode != LM_QR_R) {
    j.q = out[0];
    j.columns = (int)out[0]->size[out[0]->ndim - 1];
  }
  double work = 2.0 * j.m * j.n * (j.min_mn + j.columns);
  j.alone = work < 1e9;
  return lm_each_matrix(lm_matrix_count(x), work, lay_out_all(&j, NULL, &p), qr_one, &j, &bad);
}
