/* Which code multiplies which matrices: blocks of packed panels float32 and float64, other loops of ours integers, few
 * rows, and whatever is too small for preparations. An element of C is summed in the same order wherever threads cut C.
 */
#include "backend/cpu/matmul/gemm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gemm.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/isa/matmul/skinny_gemm.h"
#include "backend/cpu/onednn/onednn.h"
#include "device/alloc.h"

/* Rows or columns go to threads in multiples of this. */
enum { GRAIN = 16 };

/* Up to that many rows a product is as long as it takes to read the matrix: of 16-bit floats, and of float32, whose
 * matrix, if transposed, must be packed otherwise. */
enum { FEW_HALF_ROWS = 8, FEW_ROWS = 4, FEW_ROWS_TRANSPOSED = 16 };

/* A block has that many columns and rows of C, and bytes of each row of A. Its rows of A stay in the second cache. */
enum { BLOCK_COLUMNS = 1024, BLOCK_ROWS = 240, BLOCK_BYTES = 2048 };

/* About how many multiplications a nanosecond one thread does. */
static double rate(lm_dtype dtype) {
  return dtype == LM_F32 ? 100 : dtype == LM_F64 ? 50 : lm_dtype_size(dtype) < 8 ? 10 : 2;
}

static double work(const lm_cpu_gemm_job *g) { return (double)g->m * (double)g->n * (double)g->k; }

/* Plain loops are done first with so few multiplications, and they have integers. */
static bool is_small(const lm_cpu_gemm_job *g) { return work(g) <= 512; }
static bool has_panels(const lm_cpu_gemm_job *g) { return g->dtype == LM_F32 || g->dtype == LM_F64; }

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

/* ---- blocks */

/* How a product is cut into blocks. The terms' blocks are the same whatever part of C is made. */
typedef struct blocks {
  const struct lm_panel_loops *loops;
  int64_t bytes;                /* of an element */
  int64_t terms, columns, rows; /* of a block at most */
  bool packs;                   /* B; or it is read as it lies, except columns beyond the last whole panel */
  int64_t copied_row;           /* elements from one row of the copy of A to the next, or 0: A is read as it lies */
} blocks;

static blocks blocks_of(const lm_cpu_gemm_job *g) {
  enum { MAX_COLUMNS = 128, WAY = 2048, PACKED_ROWS = 256, CACHED = 512 << 10 };
  blocks s = {.loops = g->dtype == LM_F64 ? LM_ISA_PICK(lm_panels_F64) : LM_ISA_PICK(lm_panels_F32),
              .bytes = (int64_t)lm_dtype_size(g->dtype)};
  const int64_t terms = BLOCK_BYTES / s.bytes, width = s.loops->width;
  s.terms = g->k > 0 ? lm_ceil_div(g->k, lm_ceil_div(g->k, terms)) : 0;
  s.columns = lm_min(BLOCK_COLUMNS, lm_round_up(g->n, width));
  s.rows = lm_ceil_div(g->m, lm_ceil_div(g->m, BLOCK_ROWS));
  s.packs = g->tb || (g->m > PACKED_ROWS && g->n * g->k * s.bytes > CACHED);
  /* Rows of A whose distance is a power of two want the same positions of the first cache; those of a transposed A
   * are on many pages. */
  if (g->n > MAX_COLUMNS && (g->ta || g->lda * s.bytes % WAY == 0)) {
    s.copied_row = lm_round_up(g->ta ? s.rows : s.terms, 16) + 16;
    if (s.copied_row % 32 == 0) s.copied_row += 16;
  }
  return s;
}

/* Bytes of packed columns. */
static size_t packed_bytes(const blocks *s) {
  return (size_t)lm_round_up((s->packs ? s->columns : s->loops->width) * s->terms * s->bytes, 64);
}

static size_t scratch_of(const lm_cpu_gemm_job *g, const blocks *s) {
  return packed_bytes(s) + (size_t)((g->ta ? s->terms : s->rows) * s->copied_row * s->bytes) + 1; /* never none */
}

/* `rows` rows and `terms` terms of A, copied, or as they lie. */
static void take_a(const lm_cpu_gemm_job *g, const blocks *s, const char *from, int64_t rows, int64_t terms, char *copy,
                   lm_panel_product *p) {
  const int64_t lines = g->ta ? terms : rows, length = (g->ta ? rows : terms) * s->bytes;
  const int64_t step = s->copied_row ? s->copied_row : g->lda;
  for (int64_t r = 0; s->copied_row && r < lines; r++)
    memcpy(copy + r * step * s->bytes, from + r * g->lda * s->bytes, (size_t)length);
  p->a = s->copied_row ? copy : from;
  p->a_row = g->ta ? 1 : step;
  p->a_col = g->ta ? step : 1;
}

/* Rows of C by the columns and terms of p, of which the first `direct` columns are B's as they lie, at `b`. */
static void multiply_rows(const lm_cpu_gemm_job *g, const blocks *s, lm_panel_product p, const char *b,
                          int64_t direct) {
  const int64_t width = s->loops->width, n = p.n;
  if (direct > 0) {
    lm_panel_product q = p;
    q.n = direct, q.panels = b, q.panel_step = width, q.panel_row = g->ldb;
    s->loops->product(&q);
  }
  p.n = n - direct;
  p.c = (char *)p.c + direct * s->bytes;
  if (p.n > 0) s->loops->product(&p);
}

/* One product of float32 or float64 on this thread. */
static void by_blocks(const lm_cpu_gemm_job *g, const blocks *s, char *packed) {
  const int64_t width = s->loops->width;
  char *copy = packed + packed_bytes(s);
  const int64_t blocks_of_rows = lm_ceil_div(g->m, s->rows);
  for (int64_t j = 0; j < g->n; j += s->columns) {
    const int64_t n = lm_min(s->columns, g->n - j), direct = s->packs ? 0 : n / width * width;
    int64_t k = 0;
    do {
      const int64_t terms = lm_min(s->terms, g->k - k);
      const char *b = (const char *)g->b + (g->tb ? j * g->ldb + k : k * g->ldb + j) * s->bytes;
      s->loops->pack(packed, b + direct * (g->tb ? g->ldb : 1) * s->bytes, g->tb ? 1 : g->ldb, g->tb ? g->ldb : 1,
                     terms, n - direct);
      for (int64_t block = 0; block < blocks_of_rows; block++) {
        const int64_t i = lm_part_begin(g->m, block, blocks_of_rows);
        lm_panel_product p = {.m = lm_part_begin(g->m, block + 1, blocks_of_rows) - i,
                              .n = n,
                              .k = terms,
                              .panels = packed,
                              .panel_step = terms * width,
                              .panel_row = width,
                              .c = (char *)g->c + (i * g->ldc + j) * s->bytes,
                              .c_row = g->ldc,
                              .alpha = g->alpha,
                              .beta = k > 0 ? 1 : g->beta};
        take_a(g, s, (const char *)g->a + (g->ta ? k * g->lda + i : i * g->lda + k) * s->bytes, p.m, terms, copy, &p);
        multiply_rows(g, s, p, b, direct);
      }
      k += terms;
    } while (k < g->k);
  }
}

/* ---- parts */

/* From where to where part `part` of `parts` of that many rows or columns goes. */
static int64_t part_of(int64_t size, int64_t part, int64_t parts, int64_t *n) {
  const int64_t grains = size / GRAIN, begin = grains * part / parts * GRAIN;
  *n = (part + 1 == parts ? size : grains * (part + 1) / parts * GRAIN) - begin;
  return begin;
}

static lm_cpu_gemm_job columns_of(const lm_cpu_gemm_job *g, int64_t part, int64_t parts) {
  lm_cpu_gemm_job s = *g;
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype), begin = part_of(g->n, part, parts, &s.n);
  s.b = (const char *)g->b + begin * (g->tb ? g->ldb : 1) * bytes;
  s.c = (char *)g->c + begin * bytes;
  return s;
}

/* One product in parts of C's rows and columns. */
typedef struct parts_job {
  const lm_cpu_gemm_job *g;
  blocks blocks;
  int64_t parts, of_columns;
  _Atomic bool declined;
} parts_job;

static lm_cpu_gemm_job slice_of(const parts_job *j, int64_t part) {
  lm_cpu_gemm_job s = columns_of(j->g, part % j->of_columns, j->of_columns);
  int64_t begin = part_of(j->g->m, part / j->of_columns, j->parts / j->of_columns, &s.m);
  s.a = (const char *)s.a + begin * (s.ta ? 1 : s.lda) * (int64_t)lm_dtype_size(s.dtype);
  s.c = (char *)s.c + begin * s.ldc * (int64_t)lm_dtype_size(s.dtype);
  return s;
}

/* As many parts as threads, so cut that they read least: each packs its columns of B, which counts twice. */
static parts_job parts_of(const lm_cpu_gemm_job *g, double work_ns) {
  parts_job j = {.g = g, .parts = lm_threads_for(work_ns), .of_columns = 1};
  double least = INFINITY;
  for (int64_t columns = 1; columns <= j.parts; columns++) {
    double reads = (double)g->m * (double)columns + 2 * (double)g->n * (double)(j.parts / columns);
    if (j.parts % columns != 0 || reads >= least) continue;
    least = reads;
    j.of_columns = columns;
  }
  return j;
}

static void multiply_parts(void *ctx, int64_t first, int64_t last) {
  const parts_job *j = ctx;
  for (int64_t part = first; part < last; part++) {
    lm_cpu_gemm_job s = slice_of(j, part);
    if (s.m <= 0 || s.n <= 0) continue;
    if (has_panels(&s))
      by_blocks(&s, &j->blocks, lm_scratch());
    else
      by_loops(&s);
  }
}

static lm_status by_parts(const lm_cpu_gemm_job *g) {
  if (is_small(g)) {
    by_loops(g);
    return LM_OK;
  }
  /* By a vector it is memory that counts, some 10 bytes a nanosecond. */
  double entries = (double)g->m * (double)g->k + (double)g->k * (double)g->n + (double)g->m * (double)g->n;
  double work_ns = fmax(work(g) / rate(g->dtype), g->dtype == LM_F32 ? entries * 0.4 : 0);
  parts_job j = parts_of(g, g->alone ? 0 : work_ns);
  if (has_panels(g)) j.blocks = blocks_of(g);
  return lm_parallel(j.parts, work_ns, has_panels(g) ? scratch_of(g, &j.blocks) : 0, multiply_parts, &j);
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
  bool half = g->dtype == LM_F16 || g->dtype == LM_BF16;
  bool long_enough = (g->n >= 256 && g->k >= 256) || (g->m == 1 && g->tb && g->k >= 64);
  return half || (g->dtype == LM_F32 && g->m <= (g->tb ? FEW_ROWS_TRANSPOSED : FEW_ROWS) && !g->ta && long_enough);
}

static lm_skinny_gemm_job skinny_gemm_of(const lm_cpu_gemm_job *g, const float *x, int64_t x_row) {
  return (lm_skinny_gemm_job){.m = g->m,
                              .n = g->n,
                              .k = g->k,
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

/* Of n terms of member i, from `begin` on. */
static double dot(const lm_cpu_gemm_job *g, int64_t i, int64_t begin, int64_t n) {
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  return LM_ISA_PICK(lm_gemm_loops)
      ->dot[g->dtype]((const char *)g->a + (i * g->step_a + begin) * bytes,
                      (const char *)g->b + (i * g->step_b + begin) * bytes, n);
}

static void multiply_dots(void *ctx, int64_t first, int64_t last) {
  const dots_job *j = ctx;
  for (int64_t i = first; i < last; i++) put_dot(j->g, i, dot(j->g, i, 0, j->g->k));
}

static void multiply_dot_parts(void *ctx, int64_t first, int64_t last) {
  dots_job *j = ctx;
  int64_t each = (j->g->k + DOT_PARTS - 1) / DOT_PARTS;
  for (int64_t p = first; p < last; p++) {
    int64_t begin = p * each, n = j->g->k - begin < each ? j->g->k - begin : each;
    j->part[p] = n > 0 ? dot(j->g, 0, begin, n) : 0;
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

/* A matrix times a column is a row times the transposed matrix. */
static lm_cpu_gemm_job row_of_column(const lm_cpu_gemm_job *g) {
  lm_cpu_gemm_job s = *g;
  if (g->n > 1 || g->m == 1 || g->ldc != 1 || (!g->tb && g->ldb != 1)) return s;
  s.m = 1, s.n = g->m;
  s.a = g->b, s.lda = g->k, s.ta = false;
  s.b = g->a, s.ldb = g->lda, s.tb = !g->ta;
  s.ldc = g->m;
  return s;
}

/* One row of float64 times a transposed matrix, which must be packed otherwise. */
static bool is_row_of_dots(const lm_cpu_gemm_job *g) {
  return g->dtype == LM_F64 && g->m == 1 && g->tb && (!g->ta || g->lda == 1) && !is_small(g);
}

static lm_status multiply_member(const lm_cpu_gemm_job *g, int64_t i) {
  lm_cpu_gemm_job s = member_of(g, i);
  s = row_of_column(&s);
  if (is_skinny(&s)) return by_skinny_gemm(&s);
  if (!is_row_of_dots(&s)) return by_parts(&s);
  s.batch = s.n, s.n = 1;
  s.step_a = 0, s.step_b = s.ldb, s.step_c = 1;
  by_dots(&s);
  return LM_OK;
}

/* Matrices of a batch side by side. */
static void multiply_members(void *ctx, int64_t first, int64_t last) {
  const lm_cpu_gemm_job *g = ctx;
  for (int64_t i = first; i < last; i++) lm_parallel_note(multiply_member(g, i));
}

lm_status lm_cpu_gemm(const lm_cpu_gemm_job *g) {
  if (g->batch <= 0 || g->m <= 0 || g->n <= 0) return LM_OK;
  if (g->alpha == 0 && g->k > 0) { /* what is not finite in A or B does not count, as in BLAS */
    lm_cpu_gemm_job s = *g;
    s.k = 0;
    return lm_cpu_gemm(&s);
  }
  if (is_dot(g)) {
    by_dots(g);
    return LM_OK;
  }
  /* Matrices of a batch side by side, unless they are few and large. */
  double work_ns = g->batch > 1 && !g->alone ? work(g) * (double)g->batch / rate(g->dtype) : 0;
  int64_t threads = lm_min(lm_threads_for(work_ns), g->batch);
  if (threads > 1 && (g->batch >= 4 * threads || lm_threads_for(work(g) / rate(g->dtype)) == 1))
    return lm_parallel(g->batch, work_ns, 0, multiply_members, (void *)g);
  for (int64_t i = 0; i < g->batch; i++) NEED(multiply_member(g, i));
  return LM_OK;
}

/* bfloat16 by oneDNN: matrices of a batch, or parts of one, which round their sums by their sizes: other bits with
 * another number of threads. */
static void multiply_bf16(void *ctx, int64_t first, int64_t last) {
  parts_job *j = ctx;
  int64_t members = j->g->batch > 1 ? 1 : last - first;
  for (int64_t i = 0; i < members; i++) {
    lm_cpu_gemm_job s = j->g->batch > 1 ? member_of(j->g, first) : slice_of(j, first + i);
    bool done_ = true;
    if (j->g->batch > 1) s.batch = last - first;
    if (s.m > 0 && s.n > 0) lm_parallel_note(lm_dnn_gemm_bf16(&s, &done_));
    if (!done_) j->declined = true;
  }
}

lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *g, bool *done_) {
  *done_ = false;
  if (g->alpha == 0) return LM_OK;
  double work_ns = work(g) * (double)g->batch / rate(LM_F32);
  parts_job job = parts_of(g, work_ns);
  NEED(lm_parallel(g->batch > 1 ? g->batch : job.parts, work_ns, 0, multiply_bf16, &job));
  *done_ = !job.declined;
  return LM_OK;
}
