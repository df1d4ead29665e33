/* Computes distances between the rows of two matrices. */
#include "backend/cpu/isa/distance.h"

#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"
#include "op_args_products.h"

enum { TILE = LM_DISTANCE_TILE };

typedef struct rows_job {
  lm_dtype dtype;
  size_t item;
  int64_t n, r, m, tiles; /* x1 [n, m], x2 [r, m] */
  double p;
  const lm_tensor *x1, *x2, *out;
  bool pairs;                      /* x1 is x2, and only each row's distances from later rows are requested */
  char *packed;                    /* x2 in tiles */
  const char *squares1, *squares2; /* each row's sum of squares */
} rows_job;

/* Returns the index of row i's first pair among those of n rows. */
static int64_t pairs_before(int64_t n, int64_t i) { return i * (2 * n - i - 1) / 2; }

/* Packs rows first .. first + TILE - 1 of x2 as the columns of a tile; missing ones are 0. */
static void pack_x2(const rows_job *j, const char *x2, int64_t first, char *tile) {
  int64_t count = j->r - first < TILE ? j->r - first : TILE;
  if (count < TILE) memset(tile, 0, j->item * TILE * (size_t)j->m);
  for (int64_t l = 0; l < count; l++) {
    const char *row = x2 + j->item * (size_t)((first + l) * j->m);
    for (int64_t k = 0; k < j->m; k++) lm_scalar_put(j->dtype, tile, k * TILE + l, lm_real_at(j->dtype, row, k));
  }
}

typedef void distance_loop(double, int64_t, const void *, const void *, int64_t, void *);

/* Computes the distances of row i from those after it; the first of these may be inside a tile. */
static void later_rows(const rows_job *j, distance_loop *run, int64_t i, const char *x, const char *tiles) {
  char *to = j->out->data + j->item * (size_t)pairs_before(j->n, i);
  for (int64_t t = (i + 1) / TILE; t < j->tiles; t++) {
    double kept[TILE];
    int64_t begin = t * TILE, end = begin + TILE < j->r ? begin + TILE : j->r, first = i + 1 > begin ? i + 1 : begin;
    size_t bytes = j->item * (size_t)(end - first);
    run(j->p, j->m, x, tiles + j->item * (size_t)(begin * j->m), end - begin, first == begin ? (void *)to : kept);
    if (first > begin) memcpy(to, (char *)kept + j->item * (size_t)(first - begin), bytes);
    to += bytes;
  }
}

static void pack_tiles(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  for (int64_t i = first; i < last; i++)
    pack_x2(j, lm_matrix_at(j->x2, i / j->tiles), i % j->tiles * TILE, j->packed + j->item * (size_t)(i * TILE * j->m));
}

static void measure_rows(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  int64_t each = TILE * j->m;
  distance_loop *run = lm_distance_loops_of(j->dtype)->direct;
  for (int64_t i = first; i < last; i++) {
    const char *x = j->x1->data + j->item * (size_t)(i * j->m);
    if (j->pairs) {
      later_rows(j, run, i, x, j->packed);
      continue;
    }
    char *to = j->out->data + j->item * (size_t)(i * j->r);
    for (int64_t t = 0; t < j->tiles; t++) {
      int64_t left = j->r - t * TILE;
      run(j->p, j->m, x, j->packed + j->item * (size_t)((i / j->n * j->tiles + t) * each), left < TILE ? left : TILE,
          to + j->item * (size_t)(t * TILE));
    }
  }
}

static lm_status direct(rows_job *j) {
  int64_t batches = j->pairs ? 1 : lm_matrix_count(j->out);
  LM_WORKSPACE(char, packed, (size_t)(batches * j->tiles * TILE * j->m) * j->item);
  j->packed = packed;
  double work = (double)batches * (double)j->n * (double)(j->r * (j->m + 8)) / (j->pairs ? 2 : 1);
  if (j->p == 0 || j->p == 1 || j->p == 2) work /= 8;
  lm_parallel(batches * j->tiles, work, 0, pack_tiles, j);
  return lm_parallel(batches * j->n, work, 0, measure_rows, j);
}

static void sum_squares(const lm_tensor *x, void *sums) {
  const int64_t m = x->size[x->ndim - 1];
  for (int64_t i = 0; i < x->numel / m; i++) {
    double sum = 0;
    for (int64_t k = 0; k < m; k++) {
      double v = lm_real_at(x->dtype, x->data, i * m + k);
      sum += v * v;
    }
    lm_scalar_put(x->dtype, sums, i, sum);
  }
}

static void finish_products(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  for (int64_t i = first; i < last; i++)
    lm_distance_loops_of(j->dtype)->from_products(j->r, lm_real_at(j->dtype, j->squares1, i),
                                                  j->squares2 + j->item * (size_t)(i / j->n * j->r),
                                                  j->out->data + j->item * (size_t)(i * j->r));
}

/* Computes distances by |a - b|^2 = |a|^2 + |b|^2 - 2 a b. */
static lm_status compute_by_products(rows_job *j) {
  int64_t batches = lm_matrix_count(j->out);
  LM_WORKSPACE(char, squares1, j->item *(size_t)(j->x1->numel / j->m));
  LM_WORKSPACE(char, squares2, j->item *(size_t)(j->x2->numel / j->m));
  lm_cpu_gemm_job product = lm_cpu_gemm_job_of(
      j->dtype, j->n, j->r, j->m, 1, (lm_gemm_matrix){.data = j->x1->data, .ld = j->m, .step = j->n * j->m},
      (lm_gemm_matrix){.data = j->x2->data, .ld = j->m, .transposed = true, .step = j->r * j->m}, 0, j->out->data,
      j->r);
  product.batch = batches, product.step_c = j->n * j->r;
  sum_squares(j->x1, squares1);
  sum_squares(j->x2, squares2);
  NEED(lm_cpu_gemm(&product));
  j->squares1 = squares1, j->squares2 = squares2;
  return lm_parallel(batches * j->n, (double)j->out->numel, 0, finish_products, j);
}

/* Computes the distances of x1's rows from x2's; `pairs`: of each row from the later ones, where x1 is x2. */
static lm_status compute_distances(const lm_tensor *x1, const lm_tensor *x2, double p, bool pairs, bool products,
                                   lm_tensor *out) {
  LM_OWNED *rows1 = NULL, *rows2 = NULL;
  NEED(lm_row_major(x1, &rows1));
  NEED(lm_row_major(x2, &rows2));
  rows_job j = {.dtype = out->dtype,
                .item = lm_dtype_size(out->dtype),
                .n = x1->size[x1->ndim - 2],
                .r = x2->size[x2->ndim - 2],
                .m = x1->size[x1->ndim - 1],
                .p = p,
                .x1 = rows1,
                .x2 = rows2,
                .out = out,
                .pairs = pairs};
  j.tiles = lm_ceil_div(j.r, TILE);
  if (j.m > 0) return products ? compute_by_products(&j) : direct(&j);
  memset(out->data, 0, lm_nbytes(out));
  return LM_OK;
}

lm_status lm_cpu_row_distances(const lm_row_distances_args *a, lm_tensor *const *out) {
  return compute_distances(a->x1, a->x2, a->p, false, a->by_products, out[0]);
}

lm_status lm_cpu_pair_distances(const lm_pair_distances_args *a, lm_tensor *const *out) {
  return compute_distances(a->x, a->x, a->p, true, false, out[0]);
}

typedef struct signs_job {
  const lm_tensor *g, *x1, *x2;
  lm_tensor *out;
} signs_job;

static void sum_signs(void *ctx, int64_t first, int64_t last) {
  const signs_job *j = ctx;
  const lm_tensor *x1 = j->x1, *x2 = j->x2;
  lm_dtype dtype = (lm_dtype)j->out->dtype;
  int64_t n = x1->size[x1->ndim - 2], r = x2->size[x2->ndim - 2], m = x1->size[x1->ndim - 1];
  int64_t item = (int64_t)lm_dtype_size(dtype);
  for (int64_t i = first; i < last; i++)
    lm_distance_loops_of(dtype)->signs(r, m, j->g->data + i * r * item, x1->data + i * m * item,
                                       x2->data + i / n * r * m * item, j->out->data + i * m * item);
}

lm_status lm_cpu_row_distances_backward(const lm_row_distances_backward_args *a, lm_tensor *const *out) {
  LM_OWNED *g = NULL, *x1 = NULL, *x2 = NULL;
  NEED(lm_row_major(a->grad, &g));
  NEED(lm_row_major(a->x1, &x1));
  NEED(lm_row_major(a->x2, &x2));
  int64_t rows = x1->size[x1->ndim - 2] * lm_matrix_count(out[0]);
  double each = (double)(x2->size[x2->ndim - 2] * (x1->size[x1->ndim - 1] + 8)) / 8;
  return lm_parallel(rows, (double)rows * each, 0, sum_signs, &(signs_job){g, x1, x2, out[0]});
}

lm_status lm_cpu_matrix_to_pairs(const lm_matrix_to_pairs_args *a, lm_tensor *const *out) {
  LM_OWNED *x = NULL;
  NEED(lm_row_major(a->x, &x));
  int64_t n = x->size[0];
  size_t item = lm_dtype_size(x->dtype);
  for (int64_t i = 0; i < n; i++)
    memcpy(out[0]->data + item * (size_t)pairs_before(n, i), x->data + item * (size_t)(i * n + i + 1),
           item * (size_t)(n - i - 1));
  return LM_OK;
}

enum { SQUARE = 16 };

typedef struct unpairing {
  int64_t n;
  size_t item;
  const char *from;
  char *to;
} unpairing;

static void copy_pairs(void *ctx, int64_t first, int64_t last) {
  const unpairing *j = ctx;
  for (int64_t i = first; i < last; i++) {
    memset(j->to + j->item * (size_t)(i * j->n + i), 0, j->item);
    memcpy(j->to + j->item * (size_t)(i * j->n + i + 1), j->from + j->item * (size_t)pairs_before(j->n, i),
           j->item * (size_t)(j->n - i - 1));
  }
}

#define MIRROR(type)                                                                                   \
  static void mirror_squares_##type(void *ctx, int64_t from, int64_t to) {                             \
    const unpairing *j = ctx;                                                                          \
    type *x = (type *)j->to;                                                                           \
    for (int64_t first = from * SQUARE; first < to * SQUARE && first < j->n; first += SQUARE) {        \
      int64_t end = first + SQUARE < j->n ? first + SQUARE : j->n;                                     \
      for (int64_t begin = 0; begin < end; begin += SQUARE) {                                          \
        for (int64_t i = first; i < end; i++) {                                                        \
          for (int64_t k = begin; k < begin + SQUARE && k < i; k++) x[i * j->n + k] = x[k * j->n + i]; \
        }                                                                                              \
      }                                                                                                \
    }                                                                                                  \
  }
MIRROR(float)
MIRROR(double)
#undef MIRROR

/* Copies rows right of the diagonal, and transposes squares to below it. */
lm_status lm_cpu_pairs_to_matrix(const lm_pairs_to_matrix_args *a, lm_tensor *const *out) {
  LM_OWNED *x = NULL;
  double work = (double)a->n * (double)a->n;
  NEED(lm_row_major(a->x, &x));
  unpairing job = {a->n, lm_dtype_size((lm_dtype)a->x->dtype), x->data, out[0]->data};
  lm_parallel(a->n, work, 0, copy_pairs, &job);
  return lm_parallel(lm_ceil_div(a->n, SQUARE), work, 0, job.item == 4 ? mirror_squares_float : mirror_squares_double,
                     &job);
}
