/* Which code multiplies which matrices: oneDNN float32, OpenBLAS float64, loops of our own integers
 * and whatever is too small for a library's preparations. */
#include "backend/cpu/matmul/gemm.h"

#include <limits.h>
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gemm.h"
#include "backend/cpu/isa/matmul/skinny_gemm.h"
#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/onednn/guard.h"
#include "backend/cpu/onednn/onednn.h"
#include "device/alloc.h"

/* Rows or columns go to threads in multiples of this. */
enum { GRAIN = 16 };

/* Up to that many rows a product is as long as it takes to read the matrix: of 16-bit floats, and of float32. */
enum { FEW_HALF_ROWS = 8, FEW_ROWS = 4 };

/* Below that many multiplications our own loops are done before a library has looked at its arguments. */
static bool is_small(const lm_cpu_gemm_job *g) {
  double work = (double)g->m * (double)g->n * (double)g->k;
  return work <= (g->dtype == LM_F32 ? 512 : 64);
}

/* About how many multiplications a nanosecond one thread does. */
static double rate(lm_dtype dtype) {
  return dtype == LM_F32 ? 100 : dtype == LM_F64 ? 25 : lm_dtype_size(dtype) < 8 ? 10 : 2;
}

static double work(const lm_cpu_gemm_job *g) { return (double)g->m * (double)g->n * (double)g->k; }

static void by_loops(const lm_cpu_gemm_job *g) {
  lm_small_gemm s = {.m = g->m,
                     .n = g->n,
                     .k = g->k,
                     .a = g->a,
                     .b = g->b,
                     .c = g->c,
                     .a_row = g->ta ? 1 : g->lda,
                     .a_col = g->ta ? g->lda : 1,
                     .b_row = g->tb ? 1 : g->ldb,
                     .b_col = g->tb ? g->ldb : 1,
                     .ldc = g->ldc,
                     .alpha = g->alpha,
                     .beta = g->beta};
  LM_ISA_PICK(lm_gemm_loops)->of[g->dtype](&s);
}

static bool fits_int(const lm_cpu_gemm_job *g) {
  return g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->lda <= INT_MAX && g->ldb <= INT_MAX &&
         g->ldc <= INT_MAX;
}

/* For some sizes oneDNN multiplies a transposed matrix at half its speed: where rows are multiples of a page apart,
 * which all want the same positions of a cache, or where one side of C is narrow. OpenBLAS does not mind. */
static bool is_slow_to_transpose(const lm_cpu_gemm_job *g) {
  enum { PAGE = 4096 / sizeof(float), NARROW = 512 };
  int64_t narrow = g->m < g->n ? g->m : g->n, wide = g->m < g->n ? g->n : g->m;
  return g->dtype == LM_F32 && g->ta && !g->tb && narrow >= 64 && wide >= 256 && g->k >= 512 &&
         (g->lda % PAGE == 0 || narrow <= NARROW);
}

static bool blas_is_faster(const lm_cpu_gemm_job *g) {
  return fits_int(g) && ((g->dtype == LM_F64 && !is_small(g)) || is_slow_to_transpose(g));
}

/* One matrix on this thread; of float32 by loops, or a part of what suits BLAS. */
static void multiply_one(const lm_cpu_gemm_job *g, bool by_blas) {
  if (!by_blas || (g->dtype != LM_F32 && !blas_is_faster(g))) {
    by_loops(g);
    return;
  }
  const int m = (int)g->m, n = (int)g->n, k = (int)g->k, lda = (int)g->lda, ldb = (int)g->ldb, ldc = (int)g->ldc;
  const lm_scalar alpha = lm_scalar_of(g->dtype, g->alpha), beta = lm_scalar_of(g->dtype, g->beta);
  LM_CALL(g->dtype, gemm, g->tb ? "T" : "N", g->ta ? "T" : "N", &n, &m, &k, &alpha, g->b, &ldb, g->a, &lda, &beta, g->c,
          &ldc, 1, 1);
}

/* From where to where part `part` of `parts` of that many rows or columns goes. */
static int64_t part_of(int64_t size, int part, int parts, int64_t *n) {
  int64_t grains = lm_ceil_div(size, GRAIN);
  int64_t begin = grains * part / parts * GRAIN, end = grains * (part + 1) / parts * GRAIN;
  *n = (end < size ? end : size) - begin;
  return begin;
}

static lm_cpu_gemm_job columns_of(const lm_cpu_gemm_job *g, int part, int parts) {
  lm_cpu_gemm_job s = *g;
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype), begin = part_of(g->n, part, parts, &s.n);
  s.b = (const char *)g->b + begin * (g->tb ? g->ldb : 1) * bytes;
  s.c = (char *)g->c + begin * bytes;
  return s;
}

/* A part of the larger side of C. */
static lm_cpu_gemm_job slice_of(const lm_cpu_gemm_job *g, int part, int parts) {
  lm_cpu_gemm_job s = *g;
  if (g->m < g->n) return columns_of(g, part, parts);
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype), begin = part_of(g->m, part, parts, &s.m);
  s.a = (const char *)g->a + begin * (g->ta ? 1 : g->lda) * bytes;
  s.c = (char *)g->c + begin * g->ldc * bytes;
  return s;
}

/* One product in slices, which differ by at most a grain; of float32 by oneDNN. */
typedef struct slices_job {
  const lm_cpu_gemm_job *g;
  int parts;
  bool by_blas;
  _Atomic bool declined;
} slices_job;

static lm_status sgemm(const lm_cpu_gemm_job *g) {
  if (is_small(g)) {
    by_loops(g);
    return LM_OK;
  }
  return lm_dnn_sgemm(g->ta, g->tb, g->m, g->n, g->k, (float)g->alpha, g->a, g->lda, g->b, g->ldb, (float)g->beta, g->c,
                      g->ldc);
}

static void multiply_slices(void *ctx, int64_t first, int64_t last) {
  slices_job *j = ctx;
  for (int64_t part = first; part < last; part++) {
    lm_cpu_gemm_job s = slice_of(j->g, (int)part, j->parts);
    if (s.m <= 0 || s.n <= 0) continue;
    if (s.dtype != LM_F32 || j->by_blas)
      multiply_one(&s, j->by_blas);
    else
      lm_parallel_note(sgemm(&s));
  }
}

static lm_status by_slices(const lm_cpu_gemm_job *g) {
  /* By a vector it is memory that counts, some 10 bytes a nanosecond. */
  double entries = (double)g->m * (double)g->k + (double)g->k * (double)g->n + (double)g->m * (double)g->n;
  double work_ns = work(g) / rate(g->dtype);
  if (g->dtype == LM_F32) work_ns = fmax(work_ns, entries * 0.4);
  slices_job job = {.g = g, .parts = lm_threads_for(work_ns)};
  if (job.parts == 1 && g->dtype == LM_F32 && !blas_is_faster(g)) return sgemm(g);
  job.by_blas = blas_is_faster(g) && lm_openblas_enter(job.parts) == LM_OK;
  lm_status status = lm_parallel(job.parts, work_ns, 0, multiply_slices, &job);
  if (job.by_blas) lm_openblas_leave(job.parts);
  return status;
}

static lm_cpu_gemm_job member_of(const lm_cpu_gemm_job *g, int64_t i) {
  lm_cpu_gemm_job s = *g;
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  s.batch = 1;
  s.a = (const char *)g->a + i * g->step_a * bytes;
  s.b = (const char *)g->b + i * g->step_b * bytes;
  s.c = (char *)g->c + i * g->step_c * bytes;
  return s;
}

bool lm_cpu_gemm_takes_rows(lm_dtype dtype, int64_t m, int64_t n) {
  return (dtype == LM_F16 || dtype == LM_BF16) && m <= FEW_HALF_ROWS && n >= GRAIN;
}

static bool is_skinny(const lm_cpu_gemm_job *g) {
  bool half = g->dtype == LM_F16 || g->dtype == LM_BF16, long_enough = g->n >= 256 && g->k >= 256;
  return half || (g->dtype == LM_F32 && g->m <= FEW_ROWS && !g->ta && long_enough);
}

static lm_skinny_gemm_job skinny_gemm_of(const lm_cpu_gemm_job *g, const float *x, int64_t x_row) {
  return (lm_skinny_gemm_job){
      .m = g->m,
      .n = g->n,
      .k = g->alpha == 0 ? 0 : g->k, /* what is not finite in x does not count then, as in BLAS */
      .x = x,
      .b = g->b,
      .c = g->c,
      .x_row = x_row,
      .ldb = g->ldb,
      .ldc = g->ldc,
      .transposed = g->tb,
      .alpha = (float)g->alpha,
      .beta = (float)g->beta};
}

/* A product of few rows, as floats, in columns of C, or in parts of the sums that are cut by columns. */
typedef struct skinny_job {
  const lm_cpu_gemm_job *g;
  const float *x;
  int64_t x_row, pieces;
  int parts, cuts;
  float *sums; /* [parts, m, row] */
  int64_t row;
} skinny_job;

static void multiply_skinny_columns(void *ctx, int64_t first, int64_t last) {
  const skinny_job *j = ctx;
  for (int64_t p = first; p < last; p++) {
    lm_cpu_gemm_job s = columns_of(j->g, (int)p, (int)j->pieces);
    lm_skinny_gemm_job job = skinny_gemm_of(&s, j->x, j->x_row);
    if (s.n > 0) LM_ISA_PICK(lm_skinny_gemm_loops)->product[s.dtype](&job);
  }
}

static void sum_skinny_parts(void *ctx, int64_t first, int64_t last) {
  const skinny_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  const lm_skinny_gemm_job whole = skinny_gemm_of(g, j->x, j->x_row);
  for (int64_t p = first; p < last; p++) {
    lm_skinny_gemm_job s = whole;
    int64_t part = p / j->cuts, k = whole.k * part / j->parts;
    int64_t column = part_of(g->n, (int)(p % j->cuts), j->cuts, &s.n);
    s.k = whole.k * (part + 1) / j->parts - k;
    s.x = j->x + k;
    s.b = (const char *)g->b + (k * g->ldb + column) * (int64_t)lm_dtype_size(g->dtype);
    if (s.n > 0) LM_ISA_PICK(lm_skinny_gemm_loops)->sum[g->dtype](&s, j->sums + part * j->row * g->m + column, j->row);
  }
}

static void finish_skinny_sums(void *ctx, int64_t first, int64_t last) {
  const skinny_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  for (int64_t p = first; p < last; p++) {
    lm_skinny_gemm_job s = skinny_gemm_of(g, j->x, j->x_row);
    int64_t column = part_of(g->n, (int)p, (int)j->pieces, &s.n);
    s.c = (char *)g->c + column * (int64_t)lm_dtype_size(g->dtype);
    if (s.n > 0)
      LM_ISA_PICK(lm_skinny_gemm_loops)->finish[g->dtype](&s, j->sums + column, j->row, j->parts, j->row * g->m);
  }
}

/* By rows of B, which are one run of memory, in parts that are the same for any number of threads; for many threads
 * these are cut by columns, too. */
static lm_status skinny_gemm_by_sums(skinny_job *j, double work_ns) {
  enum { PARTS = 8, DEEP = 32 };
  const lm_cpu_gemm_job *g = j->g;
  const int64_t depth = skinny_gemm_of(g, j->x, j->x_row).k;
  j->parts = 1;
  while (j->parts < PARTS && depth >= 2 * j->parts * DEEP * g->m) j->parts *= 2;
  j->cuts = (int)lm_ceil_div(j->pieces, j->parts);
  j->row = lm_round_up(g->n, GRAIN);
  size_t capacity = (size_t)(j->parts * j->row * g->m) * sizeof(float);
  void *sums = NULL;
  NEED(lm_device_alloc(g->device, capacity, &sums));
  j->sums = sums;
  lm_parallel(j->parts * j->cuts, work_ns, 0, sum_skinny_parts, j);
  lm_parallel(j->pieces, work_ns, 0, finish_skinny_sums, j);
  lm_device_free(g->device, sums, capacity);
  return LM_OK;
}

static lm_status skinny_gemm(const lm_cpu_gemm_job *g, const float *x, int64_t x_row) {
  double work_ns = (double)g->n * (double)g->k * (double)lm_dtype_size(g->dtype) / 20;
  skinny_job job = {.g = g, .x = x, .x_row = x_row, .pieces = lm_cpu_pieces(lm_threads_for(work_ns))};
  if (!g->tb) return skinny_gemm_by_sums(&job, work_ns);
  /* By columns of C, each of which is one row of a transposed B in memory. */
  lm_parallel(job.pieces, work_ns, 0, multiply_skinny_columns, &job);
  return LM_OK;
}

static lm_status by_skinny_gemm(const lm_cpu_gemm_job *g) {
  lm_status status = LM_OK;
  void *x = NULL;
  size_t bytes = (size_t)(g->m * g->k + 1) * sizeof(float); /* never none */
  if (g->dtype == LM_F32) return skinny_gemm(g, g->a, g->lda);
  TRY(lm_device_alloc(g->device, bytes, &x));
  for (int64_t i = 0; i < g->m; i++) {
    const char *row = (const char *)g->a + i * g->lda * (int64_t)lm_dtype_size(g->dtype);
    LM_ISA_PICK(lm_skinny_gemm_loops)->read[g->dtype](row, g->k, (float *)x + i * g->k);
  }
  status = skinny_gemm(g, x, g->k);
  lm_device_free(g->device, x, bytes);
done:
  return status;
}

/* One row times one column, each in one run of memory. */
static bool is_dot(const lm_cpu_gemm_job *g) {
  return g->m == 1 && g->n == 1 && (g->dtype == LM_F32 || g->dtype == LM_F64) && (!g->ta || g->lda == 1) &&
         (g->tb || g->ldb == 1);
}

static void put_dot(const lm_cpu_gemm_job *g, int64_t i, double sum) {
  float *f = (float *)g->c + i * g->step_c;
  double *d = (double *)g->c + i * g->step_c;
  double before = g->beta == 0 ? 0 : g->dtype == LM_F32 ? *f : *d, y = g->alpha * sum + g->beta * before;
  if (g->dtype == LM_F32)
    *f = (float)y;
  else
    *d = y;
}

enum { DOT_PARTS = 64, LONG_DOT = 1 << 15 };

typedef struct dots_job {
  const lm_cpu_gemm_job *g; /* a batch of dots, or one of them */
  double part[DOT_PARTS];
} dots_job;

static double dot(const lm_cpu_gemm_job *g, int64_t begin, int64_t n) {
  int64_t at = begin * (int64_t)lm_dtype_size(g->dtype);
  return LM_ISA_PICK(lm_gemm_loops)->dot[g->dtype]((const char *)g->a + at, (const char *)g->b + at, n);
}

static void multiply_dots(void *ctx, int64_t first, int64_t last) {
  const dots_job *j = ctx;
  for (int64_t i = first; i < last; i++) {
    lm_cpu_gemm_job s = member_of(j->g, i);
    put_dot(j->g, i, dot(&s, 0, s.k));
  }
}

static void multiply_dot_parts(void *ctx, int64_t first, int64_t last) {
  dots_job *j = ctx;
  int64_t each = (j->g->k + DOT_PARTS - 1) / DOT_PARTS;
  for (int64_t p = first; p < last; p++) {
    int64_t begin = p * each, n = j->g->k - begin < each ? j->g->k - begin : each;
    j->part[p] = n > 0 ? dot(j->g, begin, n) : 0;
  }
}

/* A long one in parts of its own, whatever the threads. */
static void by_dots(const lm_cpu_gemm_job *g) {
  double work_ns = (double)g->batch * (double)(g->k * (int64_t)lm_dtype_size(g->dtype)) / 40;
  if (g->k < LONG_DOT) {
    lm_parallel(g->batch, work_ns, 0, multiply_dots, &(dots_job){.g = g});
    return;
  }
  for (int64_t i = 0; i < g->batch; i++) {
    lm_cpu_gemm_job s = member_of(g, i);
    dots_job job = {.g = &s};
    double sum = 0;
    lm_parallel(DOT_PARTS, work_ns, 0, multiply_dot_parts, &job);
    for (int p = 0; p < DOT_PARTS; p++) sum += job.part[p];
    put_dot(g, i, sum);
  }
}

/* Matrices of a batch side by side. */
static void multiply_members(void *ctx, int64_t first, int64_t last) {
  slices_job *j = ctx;
  lm_dnn_guard guard;
  lm_dnn_guard_begin(&guard, j->g->dtype == LM_F32);
  for (int64_t i = first; i < last; i++) {
    lm_cpu_gemm_job s = member_of(j->g, i);
    if (is_skinny(&s))
      lm_parallel_note(by_skinny_gemm(&s));
    else if (s.dtype == LM_F32)
      lm_parallel_note(sgemm(&s));
    else
      multiply_one(&s, j->by_blas);
  }
  lm_dnn_guard_end(&guard);
}

lm_status lm_cpu_gemm(const lm_cpu_gemm_job *g) {
  if (g->batch <= 0 || g->m <= 0 || g->n <= 0) return LM_OK;
  if (is_dot(g)) {
    by_dots(g);
    return LM_OK;
  }
  if (g->dtype == LM_F32 && !is_small(g)) NEED(lm_dnn_guard_products());
  /* Matrices of a batch side by side, unless they are few and large. */
  double work_ns = g->batch > 1 ? work(g) * (double)g->batch / rate(g->dtype) : 0;
  int parts = lm_threads_for(work_ns);
  if (parts > g->batch) parts = (int)g->batch;
  if (parts > 1 && (g->batch >= 4 * parts || lm_threads_for(work(g) / rate(g->dtype)) == 1)) {
    slices_job job = {.g = g, .by_blas = blas_is_faster(g) && lm_openblas_enter(parts) == LM_OK};
    lm_status status = lm_parallel(g->batch, work_ns, 0, multiply_members, &job);
    if (job.by_blas) lm_openblas_leave(parts);
    return status;
  }
  for (int64_t i = 0; i < g->batch; i++) {
    lm_cpu_gemm_job s = member_of(g, i);
    if (is_skinny(&s))
      NEED(by_skinny_gemm(&s));
    else
      NEED(by_slices(&s));
  }
  return LM_OK;
}

/* bfloat16 by oneDNN: matrices of a batch, or slices of one. */
static void multiply_bf16(void *ctx, int64_t first, int64_t last) {
  slices_job *j = ctx;
  int64_t members = j->g->batch > 1 ? 1 : last - first;
  for (int64_t i = 0; i < members; i++) {
    lm_cpu_gemm_job s = j->g->batch > 1 ? member_of(j->g, first) : slice_of(j->g, (int)(first + i), j->parts);
    bool done_ = true;
    if (j->g->batch > 1) s.batch = last - first;
    if (s.m > 0 && s.n > 0) lm_parallel_note(lm_dnn_gemm_bf16(&s, &done_));
    if (!done_) j->declined = true;
  }
}

lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *g, bool *done_) {
  double work_ns = work(g) * (double)g->batch / rate(LM_F32);
  slices_job job = {.g = g, .parts = lm_threads_for(work_ns)};
  NEED(lm_parallel(g->batch > 1 ? g->batch : job.parts, work_ns, 0, multiply_bf16, &job));
  *done_ = !job.declined;
  return LM_OK;
}

lm_status lm_cpu_gemm_enter(lm_cpu_gemm_region *region, lm_dtype dtype, int threads) {
  region->blas = dtype == LM_F64 && lm_openblas_enter(threads) == LM_OK ? threads : 0;
  return dtype == LM_F32 ? lm_dnn_guard_products() : LM_OK;
}

void lm_cpu_gemm_leave(const lm_cpu_gemm_region *region) {
  if (region->blas) lm_openblas_leave(region->blas);
}

lm_status lm_cpu_gemm_alone(const lm_cpu_gemm_region *region, const lm_cpu_gemm_job *job) {
  if (job->m <= 0 || job->n <= 0) return LM_OK;
  if (job->dtype == LM_F32) return sgemm(job);
  multiply_one(job, region->blas > 0);
  return LM_OK;
}
