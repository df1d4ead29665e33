/* Chooses the matrix-product kernel: packed panels for float32, float64 and bfloat16, plain loops for integers and
 * small sizes, others for few rows. An element of C is summed in the same order wherever threads cut C. */
#include "backend/cpu/matmul/gemm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gemm.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/isa/matmul/skinny_gemm.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/onednn/onednn.h"
#include "backend/cpu/scalar_access.h"

/* Threads take rows or columns in multiples of this. */
enum { GRAIN = 16 };

/* Most rows for which a product takes as long as reading the matrix: of 16-bit floats; of float32; of float32 with a
 * transposed matrix, which otherwise must be packed. */
enum { FEW_HALF_ROWS = 8, FEW_ROWS = 4, FEW_ROWS_TRANSPOSED = 16 };

/* A block has BLOCK_ROWS rows of C and BLOCK_BYTES of each row of A: these stay in the L2 cache, and a panel's part in
 * L1. CHUNK_COLUMNS columns of B are packed at a time, or more if they have at most CHUNK_BYTES. */
enum { BLOCK_ROWS = 240, BLOCK_BYTES = 2048, CHUNK_COLUMNS = 512, CHUNK_BYTES = 8 << 20, SUM_COLUMNS = 2048 };
/* Bytes of B that stay in the L2 cache beside rows of A. */
enum { CACHED = 512 << 10 };

/* UNIT_NS: least nanoseconds of a unit of work. PIECES: units of a thread, where there is work for them, so that others
 * take over from one that shares its core. */
enum { UNIT_NS = 10000, PIECES = 4 };

/* Returns about how many multiplications one thread does in a nanosecond. */
static double gemm_rate(lm_dtype dtype) {
  return dtype == LM_F32 ? 100 : dtype == LM_F64 ? 50 : dtype == LM_BF16 ? 200 : lm_dtype_size(dtype) < 8 ? 10 : 2;
}

static double gemm_work(const lm_cpu_gemm_job *g) { return (double)g->m * (double)g->n * (double)g->k; }

static bool has_panels(const lm_cpu_gemm_job *g) {
  return g->dtype == LM_F32 || g->dtype == LM_F64 || g->dtype == LM_BF16;
}
/* Returns true if C's rows, of float32 or float64, do not fill a panel's columns. */
static bool is_narrow(const lm_cpu_gemm_job *g) {
  const int64_t width = lm_panel_loops_of(g->dtype)->width;
  return g->n > 1 && g->n < width;
}
/* Returns true if packing costs more than it saves; of integers, which are never packed, if threads do. */
static bool is_small(const lm_cpu_gemm_job *g) {
  enum { WORK = 512, TERMS = 64, BLOCK_WORK = 4096, MAX_COLUMNS = 32 };
  if (gemm_work(g) <= WORK) return !lm_dtype_is_half(g->dtype);
  if (g->k > TERMS || (g->dtype != LM_F32 && g->dtype != LM_F64)) return false;
  return is_narrow(g) || (g->n > 1 && g->n <= MAX_COLUMNS && gemm_work(g) <= BLOCK_WORK);
}

/* Returns the bias from `column` on; NULL if there is none. */
static const void *bias_at(const lm_cpu_gemm_job *g, int64_t column) {
  return g->bias ? (const char *)g->bias + column * (int64_t)lm_dtype_size(g->dtype) : NULL;
}

/* Return the elements from one row of a matrix to the next, and from one column to the next. */
static int64_t row_step(const lm_gemm_matrix *m) { return m->transposed ? 1 : m->ld; }
static int64_t column_step(const lm_gemm_matrix *m) { return m->transposed ? m->ld : 1; }

static lm_gemm_matrix transpose_of(lm_gemm_matrix m) {
  m.transposed = !m.transposed;
  return m;
}

/* Returns g without its first rows, columns and terms; sizes stay those of g. */
static lm_cpu_gemm_job product_from(const lm_cpu_gemm_job *g, int64_t row, int64_t column, int64_t term) {
  const int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  lm_cpu_gemm_job s = *g;
  s.a.data = (const char *)g->a.data + (row * row_step(&g->a) + term * column_step(&g->a)) * bytes;
  s.b.data = (const char *)g->b.data + (term * row_step(&g->b) + column * column_step(&g->b)) * bytes;
  s.c = (char *)g->c + (row * g->ldc + column) * bytes;
  s.bias = bias_at(g, column);
  return s;
}

static void multiply_by_loops(const lm_cpu_gemm_job *g) {
  lm_small_gemm s = {.batch = g->batch,
                     .m = g->m,
                     .n = g->n,
                     .k = g->k,
                     .a = g->a.data,
                     .b = g->b.data,
                     .c = g->c,
                     .bias = g->bias,
                     .a_row = row_step(&g->a),
                     .a_col = column_step(&g->a),
                     .b_row = row_step(&g->b),
                     .b_col = column_step(&g->b),
                     .ldc = g->ldc,
                     .step_a = g->a.step,
                     .step_b = g->b.step,
                     .step_c = g->step_c,
                     .alpha = g->alpha,
                     .beta = g->beta};
  LM_ISA_PICK(lm_gemm_loops)->of[g->dtype](&s);
}

/* ---- small products */

/* Returns the job of members first .. last - 1 of a batch. */
static lm_cpu_gemm_job batch_slice(const lm_cpu_gemm_job *g, int64_t first, int64_t last) {
  const int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  lm_cpu_gemm_job s = *g;
  s.batch = last - first;
  s.a.data = (const char *)g->a.data + first * g->a.step * bytes;
  s.b.data = (const char *)g->b.data + first * g->b.step * bytes;
  s.c = (char *)g->c + first * g->step_c * bytes;
  return s;
}

static lm_cpu_gemm_job batch_member(const lm_cpu_gemm_job *g, int64_t i) { return batch_slice(g, i, i + 1); }

enum { SMALL_ROWS = 256 }; /* rows of one product in a unit of work */

static void multiply_small(void *ctx, int64_t first, int64_t last) {
  const lm_cpu_gemm_job *g = ctx;
  lm_cpu_gemm_job s = g->batch > 1 ? batch_slice(g, first, last) : product_from(g, first * SMALL_ROWS, 0, 0);
  if (g->batch == 1) s.m = lm_min(g->m, last * SMALL_ROWS) - first * SMALL_ROWS;
  multiply_by_loops(&s);
}

/* Multiplies all members of a batch in one loop: a call takes as much time as one of their products. */
static lm_status multiply_small_batch(const lm_cpu_gemm_job *g) {
  enum { ROW_NS = 2, MULTIPLICATIONS = 8 }; /* least ns of a row; number in a ns */
  const double rows = (double)g->batch * (double)g->m;
  const double work_ns = rows * ROW_NS + rows * (double)g->n * (double)g->k / MULTIPLICATIONS;
  const int64_t units = g->batch > 1 ? g->batch : lm_ceil_div(g->m, SMALL_ROWS);
  return lm_parallel(units, g->alone ? 0 : work_ns, 0, multiply_small, (void *)g);
}

/* ---- rows of few terms times a vector */

enum { ROW_TERMS = 256, ROWS_TOGETHER = 64 };

/* Returns true for a column of C whose A is read in rows. */
static bool is_column(const lm_cpu_gemm_job *g) { return g->n == 1 && !g->a.transposed; }

/* Returns true for a column of C, whose A has rows of few terms, or a row of C, whose B has such columns. */
static bool is_row_dots(const lm_cpu_gemm_job *g) {
  return g->k < ROW_TERMS && lm_dtype_is_float(g->dtype) && (is_column(g) || (g->m == 1 && g->b.transposed));
}

static lm_row_dots row_dots_of(const lm_cpu_gemm_job *g) {
  const bool column = is_column(g);
  const lm_gemm_matrix *a = column ? &g->a : &g->b, *x = column ? &g->b : &g->a;
  const int64_t rows = column ? g->m : g->n;
  return (lm_row_dots){.rows = g->batch * rows,
                       .k = g->k,
                       .a = a->data,
                       .x = x->data,
                       .bias = g->bias,
                       .c = g->c,
                       .lda = a->ld,
                       .rows_of_x = rows,
                       .step_x = x->step,
                       .c_row = column ? g->ldc : 1,
                       .bias_row = !column,
                       .alpha = g->alpha,
                       .beta = g->beta};
}

/* Returns the elements from one term of x to the next. */
static int64_t step_of_x(const lm_cpu_gemm_job *g) { return is_column(g) ? row_step(&g->b) : column_step(&g->a); }

/* Returns true if rows of all members are consecutive, in C too, and a bias is the same for all of them. */
static bool is_one_run(const lm_cpu_gemm_job *g) {
  if (g->batch == 1) return true;
  if (step_of_x(g) != 1) return false;
  if (is_column(g)) return g->a.step == g->m * g->a.ld && g->step_c == g->m * g->ldc;
  return g->b.step == g->n * g->b.ld && g->step_c == g->n && !g->bias;
}

static void multiply_row_dots(void *ctx, int64_t first, int64_t last) {
  const lm_cpu_gemm_job *g = ctx;
  lm_row_dots d = row_dots_of(g);
  d.first = first * ROWS_TOGETHER;
  d.rows = lm_min(d.rows, last * ROWS_TOGETHER) - d.first;
  LM_ISA_PICK(lm_gemm_loops)->row_dots[g->dtype](&d);
}

static lm_status multiply_by_row_dots(const lm_cpu_gemm_job *g) {
  const int64_t bytes = (int64_t)lm_dtype_size(g->dtype), step = step_of_x(g);
  lm_cpu_gemm_job s = *g;
  const lm_row_dots d = row_dots_of(g);
  char run[ROW_TERMS * sizeof(double)];
  if (step != 1) {
    for (int64_t i = 0; i < g->k; i++) memcpy(run + i * bytes, (const char *)d.x + i * step * bytes, (size_t)bytes);
    lm_gemm_matrix *x = is_column(g) ? &s.b : &s.a;
    x->data = run, x->transposed = is_column(g), x->ld = g->k;
  }
  const double work_ns = (double)d.rows * (2 + (double)(g->k * bytes) / 20);
  return lm_parallel(lm_ceil_div(d.rows, ROWS_TOGETHER), g->alone ? 0 : work_ns, 0, multiply_row_dots, &s);
}

/* ---- blocks */

/* A product of float32, float64 or bfloat16 in units, each of which makes some rows and columns of C. Its shape alone
 * decides how its terms are cut. */
typedef struct panels_job {
  lm_cpu_gemm_job g;
  const struct lm_panel_loops *loops;
  int64_t bytes;      /* bytes of an element of A and B */
  int64_t terms;      /* most terms of a block */
  bool transposed;    /* true if g makes the transpose of C */
  bool packs;         /* true if B is packed; else it is read in place, except columns beyond the last whole panel */
  bool keeps;         /* true if B is packed as a whole, for later calls too */
  bool packs_rows;    /* true if A is packed */
  int64_t copied_row; /* elements from one row of the copy of A to the next, or 0: A is read in place, or packed */
  int64_t row_parts, column_parts;
  int64_t column, columns; /* columns of C in this round */
  int64_t from, to;        /* terms in this round */
  int64_t packed_together; /* panels of a unit of packing */
  char *panels;
} panels_job;

static bool in_pairs(const panels_job *j) { return j->g.dtype == LM_BF16; }
/* Returns the bytes of an element of C's sums: 8 for float64, else 4. */
static int64_t sum_bytes(const panels_job *j) { return j->g.dtype == LM_F64 ? 8 : 4; }
/* Returns true if C is made of separate sums once all terms are in; otherwise C itself takes the sums. */
static bool has_sums(const panels_job *j) { return j->transposed || in_pairs(j); }
/* Returns the rows of a panel of that many terms. */
static int64_t depth_of(const panels_job *j, int64_t terms) { return in_pairs(j) ? lm_ceil_div(terms, 2) : terms; }
static int64_t round_terms(const panels_job *j, int64_t terms) { return in_pairs(j) ? lm_round_up(terms, 2) : terms; }

/* Returns true if it is better to compute C transposed, B transposed times A transposed: few rows are packed, not a
 * long matrix; of a transposed A few columns are read, not many, unless so few terms cost less than transposing C; and
 * two transposed matrices become none. */
static bool is_better_transposed(const lm_cpu_gemm_job *g) {
  enum { ROWS = 96, COLUMNS = 128 };
  if (!g->b.transposed) {
    const bool has_few_terms = g->dtype != LM_BF16 && g->k * (int64_t)lm_dtype_size(g->dtype) <= BLOCK_BYTES / 2;
    return g->a.transposed && g->n <= COLUMNS && g->m >= 2 * g->n &&
           (!has_few_terms || g->n < lm_panel_loops_of(g->dtype)->width);
  }
  return g->a.transposed || (g->m <= ROWS && g->n >= 2 * g->m);
}

static panels_job panels_job_of(const lm_cpu_gemm_job *g) {
  enum { MAX_COLUMNS = 128, MAX_COLUMNS_ALIASED = 768, WAY = 2048, LINE = 64, PAGE = 4096 };
  enum { UNPACKED = 256, UNPACKED_ALIASED = 63, MOST_UNPACKED = 1024 };
  panels_job j = {.g = *g,
                  .loops = g->dtype == LM_BF16 ? LM_ISA_PICK(lm_panel_loops_BF16) : lm_panel_loops_of(g->dtype),
                  .bytes = (int64_t)lm_dtype_size(g->dtype)};
  lm_cpu_gemm_job *s = &j.g;
  j.keeps = lm_prepack_is_kept(g->b.tensor) && !in_pairs(&j) && !g->a.transposed;
  j.transposed = !j.keeps && is_better_transposed(g);
  if (j.transposed) {
    s->m = g->n, s->n = g->m;
    s->a = transpose_of(g->b);
    s->b = transpose_of(g->a);
  }
  j.terms = s->k > 0 ? round_terms(&j, lm_ceil_div(s->k, lm_ceil_div(s->k * j.bytes, BLOCK_BYTES))) : 0;
  /* Rows of B whose distance is a multiple of a page map to the same sets of the L1 cache; vectors of rows that do not
   * begin with a cache line are in two lines. */
  const int64_t row = s->b.ld * j.bytes, unpacked_rows = row % PAGE == 0 ? UNPACKED_ALIASED : UNPACKED;
  j.packs = j.keeps || s->b.transposed || in_pairs(&j) || s->m > (row % LINE == 0 ? MOST_UNPACKED : UNPACKED_ALIASED) ||
            (s->m > unpacked_rows && s->n * s->k * j.bytes > CACHED);
  /* Rows of A whose distance is a power of two map to the same sets of the caches, which costs more than a copy once
   * many panels read them; those of a transposed A are on many pages; and pairs must be whole. */
  bool halves = in_pairs(&j) && (s->a.ld % 2 != 0 || s->k % 2 != 0 || (uintptr_t)s->a.data % 4 != 0);
  j.packs_rows = s->a.transposed && (s->n > MAX_COLUMNS || in_pairs(&j));
  if (!s->a.transposed && (halves || (s->n > MAX_COLUMNS_ALIASED && s->a.ld * j.bytes % WAY == 0))) {
    j.copied_row = lm_round_up(j.terms, 16) + 16;
    if (j.copied_row % 32 == 0) j.copied_row += 16;
  }
  return j;
}

static int64_t columns_padded(const panels_job *j) { return lm_round_up(j->columns, j->loops->width); }
/* Returns the panels of this round's columns, and terms from k on. */
static char *panels_at(const panels_job *j, int64_t column, int64_t k, int64_t terms) {
  const int64_t from = j->keeps ? 0 : j->from;
  return j->panels + ((k - from) * columns_padded(j) + column * round_terms(j, terms)) * j->bytes;
}

/* Return the first row or column of a unit; units are whole tiles and panels. */
static int64_t unit_rows(const panels_job *j, int64_t part) {
  return lm_min(j->g.m, lm_part_begin(lm_ceil_div(j->g.m, j->loops->height), part, j->row_parts) * j->loops->height);
}
static int64_t unit_columns(const panels_job *j, int64_t part) {
  const int64_t width = j->loops->width;
  return lm_min(j->columns, lm_part_begin(lm_ceil_div(j->columns, width), part, j->column_parts) * width);
}

/* Cuts a round so that units read least: each reads its rows and columns, and copies the rows if need be. */
static void divide_round(panels_job *j, double work_ns) {
  const int64_t tiles = lm_ceil_div(j->g.m, j->loops->height), panels = lm_ceil_div(j->columns, j->loops->width);
  const int64_t threads = j->g.alone ? 1 : lm_threads_for(work_ns), least_rows = lm_ceil_div(j->g.m, BLOCK_ROWS);
  const int64_t each = lm_max(1, lm_min(PIECES, (int64_t)(work_ns / (double)(threads * UNIT_NS))));
  const int64_t units = threads > 1 ? threads * each : 1;
  const double copies = j->copied_row || j->packs_rows ? 2 : 1;
  double least = INFINITY;
  j->row_parts = j->column_parts = 1;
  for (int64_t columns = 1; columns <= lm_min(units, panels); columns++) {
    if (units % columns != 0) continue;
    int64_t rows = lm_min(tiles, lm_round_up(least_rows, units / columns));
    double reads = copies * (double)j->g.m * (double)columns + (double)j->columns * (double)rows;
    if (rows * columns < units) reads *= (double)units / (double)(rows * columns) * 2;
    if (reads >= least) continue;
    least = reads;
    j->row_parts = rows, j->column_parts = columns;
  }
}

/* Return the bytes of a unit's own memory: rows of A, a panel of the last columns, sums. */
static size_t rows_bytes(const panels_job *j) {
  const int64_t height = j->loops->height;
  const int64_t rows = lm_ceil_div(lm_ceil_div(j->g.m, height), j->row_parts) * height;
  return (size_t)lm_round_up(rows * (j->packs_rows ? j->terms : j->copied_row) * j->bytes, 64);
}
static size_t tail_bytes(const panels_job *j) {
  return j->packs ? 0 : (size_t)lm_round_up(j->loops->width * j->terms * j->bytes, 64);
}
static int64_t sums_row(const panels_job *j) {
  const int64_t width = j->loops->width;
  return lm_ceil_div(columns_padded(j) / width, j->column_parts) * width;
}
static size_t scratch_of(const panels_job *j) {
  const int64_t height = j->loops->height;
  const int64_t rows = lm_ceil_div(lm_ceil_div(j->g.m, height), j->row_parts) * height;
  return rows_bytes(j) + tail_bytes(j) + (size_t)(has_sums(j) ? rows * sums_row(j) * sum_bytes(j) : 0) +
         1; /* at least 1 */
}

/* Sets p's rows of A and terms from k on: packed, copied, or in place. */
static void take_rows(const panels_job *j, int64_t i, int64_t k, int64_t terms, char *copy, lm_panel_product *p) {
  const lm_cpu_gemm_job *g = &j->g;
  const char *from = product_from(g, i, 0, k).a.data;
  p->k = depth_of(j, terms);
  p->a = copy;
  p->packed_rows = j->packs_rows;
  if (j->packs_rows) {
    j->loops->pack_rows(copy, from, g->a.ld, p->m, terms);
    return;
  }
  if (!j->copied_row) p->a = from;
  for (int64_t r = 0; j->copied_row && r < p->m; r++) {
    char *to = copy + r * j->copied_row * j->bytes;
    memcpy(to, from + r * g->a.ld * j->bytes, (size_t)(terms * j->bytes));
    memset(to + terms * j->bytes, 0, (size_t)((round_terms(j, terms) - terms) * j->bytes));
  }
  const int64_t row = j->copied_row ? j->copied_row : g->a.ld;
  p->a_row = g->a.transposed ? 1 : depth_of(j, row);
  p->a_col = g->a.transposed ? row : 1;
}

/* Multiplies some rows of C, and n columns of this round from `column` on, by a block of terms: with packed panels, or
 * with B in place up to its last whole panel. */
static void multiply_block(const panels_job *j, lm_panel_product p, int64_t column, int64_t n, int64_t k, int64_t terms,
                           char *tail) {
  const lm_cpu_gemm_job *g = &j->g;
  const int64_t width = j->loops->width, direct = j->packs ? 0 : n / width * width;
  p.panel_row = width;
  p.panel_step = p.k * width;
  if (j->packs) {
    p.n = n;
    p.panels = panels_at(j, column, k, terms);
    j->loops->product(&p);
    return;
  }
  const char *b = product_from(g, 0, j->column + column, k).b.data;
  if (direct > 0) {
    lm_panel_product q = p;
    q.n = direct, q.panels = b, q.panel_step = width, q.panel_row = g->b.ld;
    j->loops->product(&q);
  }
  if (direct == n) return;
  j->loops->pack(tail, b + direct * j->bytes, g->b.ld, 1, terms, n - direct);
  p.n = n - direct;
  p.panels = tail;
  p.c = (char *)p.c + direct * sum_bytes(j);
  if (p.bias) p.bias = (const char *)p.bias + direct * sum_bytes(j);
  j->loops->product(&p);
}

static void multiply_unit(const panels_job *j, int64_t unit) {
  const lm_cpu_gemm_job *g = &j->g;
  const int64_t i = unit_rows(j, unit / j->column_parts), m = unit_rows(j, unit / j->column_parts + 1) - i;
  const int64_t column = unit_columns(j, unit % j->column_parts);
  const int64_t n = unit_columns(j, unit % j->column_parts + 1) - column, at = j->column + column;
  char *rows = lm_scratch(), *tail = rows + rows_bytes(j), *sums = tail + tail_bytes(j);
  char *c = (char *)g->c + (j->transposed ? at * g->ldc + i : i * g->ldc + at) * j->bytes;
  int64_t k = j->from;
  if (m <= 0 || n <= 0) return;
  do {
    const int64_t terms = lm_min(j->terms, j->to - k);
    lm_panel_product p = {.m = m,
                          .c = has_sums(j) ? sums : c,
                          .c_row = has_sums(j) ? sums_row(j) : g->ldc,
                          .alpha = g->alpha,
                          .beta = k > 0         ? 1
                                  : has_sums(j) ? 0
                                                : g->beta,
                          .bias = k > 0 || has_sums(j) ? NULL : bias_at(g, at),
                          .one_row = g->m == 1};
    take_rows(j, i, k, terms, rows, &p);
    multiply_block(j, p, column, n, k, terms, tail);
    k += terms;
  } while (k < j->to);
  if (has_sums(j)) {
    j->loops->put(&(lm_panel_sums){.m = m,
                                   .n = n,
                                   .sums = sums,
                                   .sums_row = sums_row(j),
                                   .c = c,
                                   .c_row = g->ldc,
                                   .beta = g->beta,
                                   .bias = bias_at(g, j->transposed ? i : at),
                                   .transposed = j->transposed});
  }
  if (!g->finish || k < g->k) return;
  if (j->transposed) {
    g->finish(g->finish_ctx, at, n, i, m);
  } else {
    g->finish(g->finish_ctx, i, m, at, n);
  }
}

static void multiply_units(void *ctx, int64_t first, int64_t last) {
  for (int64_t unit = first; unit < last; unit++) multiply_unit(ctx, unit);
}

static void pack_units(void *ctx, int64_t first, int64_t last) {
  const panels_job *j = ctx;
  const lm_cpu_gemm_job *g = &j->g;
  const int64_t step = j->packed_together * j->loops->width, groups = lm_ceil_div(j->columns, step);
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t k = j->from + unit / groups * j->terms, terms = lm_min(j->terms, j->to - k);
    const int64_t column = unit % groups * step, at = j->column + column;
    j->loops->pack(panels_at(j, column, k, terms), product_from(g, 0, at, k).b.data, row_step(&g->b),
                   column_step(&g->b), terms, lm_min(step, j->columns - column));
  }
}

/* Packs the columns and terms of B of a round. Panels of a unit are adjacent: rows of B are read in longer runs. */
static void pack_round(panels_job *j) {
  enum { MOST = 8 };
  const int64_t terms = j->to - j->from, panels = lm_ceil_div(j->columns, j->loops->width);
  const double pack_ns = j->g.alone ? 0 : (double)j->columns * (double)terms * 0.3;
  const int64_t threads = lm_threads_for(pack_ns);
  j->packed_together = threads > 1 ? lm_max(1, lm_min(MOST, panels / (PIECES * threads))) : MOST;
  lm_parallel(lm_ceil_div(panels, j->packed_together) * lm_ceil_div(terms, j->terms), pack_ns, 0, pack_units, j);
}

/* Runs one round: its columns and terms of B are packed for all units. */
static lm_status multiply_round(panels_job *j, double work_ns) {
  const lm_cpu_gemm_job *g = &j->g;
  if (j->packs && !j->keeps && j->to > j->from) pack_round(j);
  divide_round(j, work_ns);
  return lm_parallel(j->row_parts * j->column_parts, g->alone ? 0 : work_ns, scratch_of(j), multiply_units, j);
}

/* Sums all terms of some columns: block by block, so that packed panels stay in the L2 cache, unless they do anyway. */
static lm_status multiply_columns(panels_job *j, double work_ns) {
  const int64_t k = j->g.k;
  const bool reads_once = j->keeps && j->g.m <= BLOCK_ROWS;
  const bool by_blocks = j->packs && !has_sums(j) && !reads_once && columns_padded(j) * k * j->bytes > CACHED;
  const int64_t step = by_blocks ? j->terms : lm_max(k, 1);
  for (j->from = 0; j->from == 0 || j->from < k; j->from += step) {
    j->to = lm_min(k, j->from + step);
    NEED(multiply_round(j, k > 0 ? work_ns * (double)(j->to - j->from) / (double)k : work_ns));
  }
  return LM_OK;
}

static lm_status multiply_by_panels(const lm_cpu_gemm_job *g, double work_ns) {
  panels_job j = panels_job_of(g);
  if (g->finish) *g->finished = true;
  const int64_t n = j.g.n, width = j.loops->width, padded = round_terms(&j, j.g.k);
  int64_t most = lm_round_up(lm_max(CHUNK_COLUMNS, CHUNK_BYTES / (padded * j.bytes + 1)), width);
  if (has_sums(&j)) most = lm_min(most, SUM_COLUMNS); /* each unit has separate sums */
  const int64_t rounds = !j.keeps && (j.packs || has_sums(&j)) ? lm_ceil_div(n, most) : 1;
  const int64_t step = lm_round_up(lm_ceil_div(n, rounds), width);
  const lm_prepack_key key = {j.g.b.data, {LM_PREPACK_PANELS, g->dtype, j.g.k, n, j.g.b.ld, j.g.b.transposed}};
  LM_PREPACK form = {0};
  if (j.packs) NEED(lm_prepack_take(j.keeps ? g->b.tensor : NULL, &key, (size_t)(step * padded * j.bytes), &form));
  j.panels = form.data;
  if (j.keeps && !form.is_ready) {
    j.columns = n, j.to = j.g.k;
    pack_round(&j);
    lm_prepack_put(&form);
  }
  for (j.column = 0; j.column < n; j.column += step) {
    j.columns = lm_min(step, n - j.column);
    NEED(multiply_columns(&j, work_ns * (double)j.columns / (double)n));
  }
  return LM_OK;
}

/* Sums very many terms of a small C in parts that are the same for any number of threads, and adds those in order. */
enum { DEEP = 4096, DEEP_PART = 1024, MAX_DEEP_PARTS = 16, MAX_DEEP_SUMS = 256 * 256 };

static bool is_deep(const lm_cpu_gemm_job *g) {
  return (g->dtype == LM_F32 || g->dtype == LM_F64) && g->m * g->n <= MAX_DEEP_SUMS && g->k >= DEEP;
}

typedef struct deep_job {
  const lm_cpu_gemm_job *g;
  int64_t parts;
  char *sums; /* [parts, m, n] */
} deep_job;

static void multiply_deep_parts(void *ctx, int64_t first, int64_t last) {
  const deep_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  for (int64_t part = first; part < last; part++) {
    const int64_t k = lm_part_begin(g->k, part, j->parts);
    lm_cpu_gemm_job s = product_from(g, 0, 0, k);
    s.k = lm_part_begin(g->k, part + 1, j->parts) - k;
    s.c = j->sums + part * g->m * g->n * (int64_t)lm_dtype_size(g->dtype);
    s.ldc = g->n;
    s.beta = 0;
    s.bias = NULL;
    s.finish = NULL;
    if (is_narrow(&s) && !s.b.transposed && !is_better_transposed(&s))
      multiply_by_loops(&s);
    else
      lm_parallel_note(multiply_by_panels(&s, 0));
  }
}

static void sum_deep_parts(void *ctx, int64_t first, int64_t last) {
  const deep_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  const int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  for (int64_t part = 0; part < j->parts; part++) {
    lm_panel_loops_of(g->dtype)->put(&(lm_panel_sums){.m = last - first,
                                                      .n = g->n,
                                                      .sums = j->sums + (part * g->m + first) * g->n * bytes,
                                                      .sums_row = g->n,
                                                      .c = (char *)g->c + first * g->ldc * bytes,
                                                      .c_row = g->ldc,
                                                      .beta = part > 0 ? 1 : g->beta,
                                                      .bias = part > 0 ? NULL : g->bias});
  }
}

static lm_status multiply_deep(const lm_cpu_gemm_job *g, double work_ns) {
  deep_job j = {.g = g, .parts = lm_min(MAX_DEEP_PARTS, g->k / DEEP_PART)};
  LM_WORKSPACE(char, sums, j.parts * g->m * g->n * (int64_t)lm_dtype_size(g->dtype));
  j.sums = sums;
  NEED(lm_parallel(j.parts, g->alone ? 0 : work_ns, 0, multiply_deep_parts, &j));
  return lm_parallel(g->m, g->alone ? 0 : (double)(j.parts * g->m * g->n) * 0.3, 0, sum_deep_parts, &j);
}

/* ---- parts */

/* Returns the beginning of part `part` of `parts` of `size` rows or columns, and sets n to its size. */
static int64_t part_of(int64_t size, int64_t part, int64_t parts, int64_t *n) {
  const int64_t grains = size / GRAIN, begin = grains * part / parts * GRAIN;
  *n = (part + 1 == parts ? size : grains * (part + 1) / parts * GRAIN) - begin;
  return begin;
}

static lm_cpu_gemm_job columns_of(const lm_cpu_gemm_job *g, int64_t part, int64_t parts) {
  int64_t n, column = part_of(g->n, part, parts, &n);
  lm_cpu_gemm_job s = product_from(g, 0, column, 0);
  s.n = n;
  return s;
}

/* A product in parts of C's rows and columns. */
typedef struct parts_job {
  const lm_cpu_gemm_job *g;
  int64_t parts, of_columns;
  _Atomic bool declined;
} parts_job;

static lm_cpu_gemm_job slice_of(const parts_job *j, int64_t part) {
  const lm_cpu_gemm_job columns = columns_of(j->g, part % j->of_columns, j->of_columns);
  int64_t m, row = part_of(j->g->m, part / j->of_columns, j->parts / j->of_columns, &m);
  lm_cpu_gemm_job s = product_from(&columns, row, 0, 0);
  s.m = m;
  return s;
}

static void multiply_parts(void *ctx, int64_t first, int64_t last) {
  const parts_job *j = ctx;
  for (int64_t part = first; part < last; part++) {
    lm_cpu_gemm_job s = slice_of(j, part);
    if (s.m > 0 && s.n > 0) multiply_by_loops(&s);
  }
}

static lm_status multiply_matrix(const lm_cpu_gemm_job *g) {
  /* Products by a vector wait for memory, some 10 bytes a nanosecond. */
  double entries = (double)g->m * (double)g->k + (double)g->k * (double)g->n + (double)g->m * (double)g->n;
  double work_ns = fmax(gemm_work(g) / gemm_rate(g->dtype), g->dtype == LM_F32 ? entries * 0.4 : 0);
  if (is_deep(g)) return multiply_deep(g, work_ns);
  if (has_panels(g)) return multiply_by_panels(g, work_ns);
  int64_t threads = g->alone ? 1 : lm_threads_for(work_ns);
  parts_job j = {.g = g, .parts = threads > 1 ? PIECES * threads : 1, .of_columns = 1};
  if (g->n > g->m) j.of_columns = j.parts;
  return lm_parallel(j.parts, g->alone ? 0 : work_ns, 0, multiply_parts, &j);
}

bool lm_cpu_gemm_takes_rows(lm_dtype dtype, int64_t m, int64_t n, int64_t k) {
  const bool column = n == 1 && k < ROW_TERMS;
  return lm_dtype_is_half(dtype) && (column || (m <= FEW_HALF_ROWS && n >= GRAIN));
}

static bool is_skinny(const lm_cpu_gemm_job *g) {
  bool half = lm_cpu_gemm_takes_rows(g->dtype, g->m, g->n, g->k) && !g->a.transposed;
  bool long_enough = (g->n >= 256 && g->k >= 256) || (g->m == 1 && g->b.transposed && g->k >= 64) ||
                     (g->m <= FEW_ROWS_TRANSPOSED / 2 && g->b.transposed && g->k >= 256 && g->n >= 64);
  bool packed = !g->b.transposed || lm_prepack_is_kept(g->b.tensor);
  return half ||
         (g->dtype == LM_F32 && g->m <= (packed ? FEW_ROWS : FEW_ROWS_TRANSPOSED) && !g->a.transposed && long_enough);
}

static lm_skinny_gemm_job skinny_gemm_of(const lm_cpu_gemm_job *g, const float *x, int64_t x_row) {
  return (lm_skinny_gemm_job){.m = g->m,
                              .n = g->n,
                              .k = g->k,
                              .x = x,
                              .b = g->b.data,
                              .c = g->c,
                              .bias = g->bias,
                              .x_row = x_row,
                              .ldb = g->b.ld,
                              .ldc = g->ldc,
                              .transposed = g->b.transposed,
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
    const lm_cpu_gemm_job s = columns_of(j->g, p, j->pieces);
    const lm_skinny_gemm_job job = skinny_gemm_of(&s, j->x, j->x_row);
    if (s.n > 0) LM_ISA_PICK(lm_skinny_gemm_loops)->product[s.dtype](&job);
  }
}

static void sum_skinny_parts(void *ctx, int64_t first, int64_t last) {
  const skinny_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  for (int64_t p = first; p < last; p++) {
    int64_t part = p / j->cuts, k = g->k * part / j->parts, n, column = part_of(g->n, p % j->cuts, j->cuts, &n);
    lm_cpu_gemm_job s = product_from(g, 0, column, k);
    s.n = n, s.k = g->k * (part + 1) / j->parts - k;
    const lm_skinny_gemm_job job = skinny_gemm_of(&s, j->x + k, j->x_row);
    if (n > 0) LM_ISA_PICK(lm_skinny_gemm_loops)->sum[g->dtype](&job, j->sums + part * j->row * g->m + column, j->row);
  }
}

static void finish_skinny_sums(void *ctx, int64_t first, int64_t last) {
  const skinny_job *j = ctx;
  const lm_cpu_gemm_job *g = j->g;
  for (int64_t p = first; p < last; p++) {
    int64_t n, column = part_of(g->n, p, j->pieces, &n);
    lm_cpu_gemm_job s = product_from(g, 0, column, 0);
    s.n = n;
    const lm_skinny_gemm_job job = skinny_gemm_of(&s, j->x, j->x_row);
    if (n > 0)
      LM_ISA_PICK(lm_skinny_gemm_loops)->finish[g->dtype](&job, j->sums + column, j->row, j->parts, j->row * g->m);
  }
}

/* Sums rows of B, which are contiguous, in parts that are the same for any number of threads; for many threads these
 * are cut by columns, too. */
static lm_status skinny_gemm_by_sums(skinny_job *j, double work_ns) {
  enum { PARTS = 8, DEEP = 32 };
  const lm_cpu_gemm_job *g = j->g;
  j->parts = 1;
  while (j->parts < PARTS && g->k >= 2 * j->parts * DEEP * g->m) j->parts *= 2;
  j->cuts = (int)lm_ceil_div(j->pieces, j->parts);
  j->row = lm_round_up(g->n, GRAIN);
  LM_WORKSPACE(float, sums, j->parts * j->row * g->m);
  j->sums = sums;
  lm_parallel(j->parts * j->cuts, work_ns, 0, sum_skinny_parts, j);
  return lm_parallel(j->pieces, work_ns, 0, finish_skinny_sums, j);
}

static lm_status skinny_gemm(const lm_cpu_gemm_job *g, const float *x, int64_t x_row) {
  double work_ns = (double)g->n * (double)g->k * (double)lm_dtype_size(g->dtype) / 20;
  skinny_job job = {.g = g, .x = x, .x_row = x_row, .pieces = lm_cpu_pieces(lm_threads_for(work_ns))};
  if (!g->b.transposed) return skinny_gemm_by_sums(&job, work_ns);
  /* Parts are columns of C, each of which is one contiguous row of a transposed B. */
  return lm_parallel(job.pieces, work_ns, 0, multiply_skinny_columns, &job);
}

static lm_status multiply_skinny(const lm_cpu_gemm_job *g) {
  if (g->dtype == LM_F32) return skinny_gemm(g, g->a.data, g->a.ld);
  LM_WORKSPACE(float, x, g->m * g->k);
  for (int64_t i = 0; i < g->m; i++)
    LM_ISA_PICK(lm_skinny_gemm_loops)->read[g->dtype](product_from(g, i, 0, 0).a.data, g->k, x + i * g->k);
  return skinny_gemm(g, x, g->k);
}

/* Returns true for one row times one column, each contiguous. */
static bool is_dot(const lm_cpu_gemm_job *g) {
  return g->m == 1 && g->n == 1 && (g->dtype == LM_F32 || g->dtype == LM_F64) && (!g->a.transposed || g->a.ld == 1) &&
         (g->b.transposed || g->b.ld == 1);
}

static void put_dot(const lm_cpu_gemm_job *g, int64_t i, double sum) {
  const double before = g->beta == 0 ? 0 : lm_real_at(g->dtype, g->c, i * g->step_c);
  lm_scalar_put(g->dtype, g->c, i * g->step_c, g->alpha * sum + g->beta * before);
}

enum { DOT_PARTS = 64, LONG_DOT = 1 << 15 };

typedef struct dots_job {
  const lm_cpu_gemm_job *g; /* a batch of dots, or one of them */
  double part[DOT_PARTS];
} dots_job;

/* Returns the sum of n terms of member i, from `begin` on. */
static double sum_gemm_terms(const lm_cpu_gemm_job *g, int64_t i, int64_t begin, int64_t n) {
  int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  return LM_ISA_PICK(lm_gemm_loops)
      ->dot[g->dtype]((const char *)g->a.data + (i * g->a.step + begin) * bytes,
                      (const char *)g->b.data + (i * g->b.step + begin) * bytes, n);
}

static void multiply_dots(void *ctx, int64_t first, int64_t last) {
  const dots_job *j = ctx;
  for (int64_t i = first; i < last; i++) put_dot(j->g, i, sum_gemm_terms(j->g, i, 0, j->g->k));
}

static void multiply_dot_parts(void *ctx, int64_t first, int64_t last) {
  dots_job *j = ctx;
  int64_t each = (j->g->k + DOT_PARTS - 1) / DOT_PARTS;
  for (int64_t p = first; p < last; p++) {
    int64_t begin = p * each, n = j->g->k - begin < each ? j->g->k - begin : each;
    j->part[p] = n > 0 ? sum_gemm_terms(j->g, 0, begin, n) : 0;
  }
}

/* Computes dots; a long one in parts that do not depend on the threads. */
static void multiply_by_dots(const lm_cpu_gemm_job *g) {
  double work_ns = (double)g->batch * (double)(g->k * (int64_t)lm_dtype_size(g->dtype)) / 40;
  if (g->k < LONG_DOT) {
    lm_parallel(g->batch, work_ns, 0, multiply_dots, &(dots_job){.g = g});
    return;
  }
  for (int64_t i = 0; i < g->batch; i++) {
    lm_cpu_gemm_job s = batch_member(g, i);
    dots_job job = {.g = &s};
    double sum = 0;
    lm_parallel(DOT_PARTS, work_ns, 0, multiply_dot_parts, &job);
    for (int p = 0; p < DOT_PARTS; p++) sum += job.part[p];
    put_dot(g, i, sum);
  }
}

/* Returns a matrix times a column as a row times the transposed matrix, where that is possible. */
static lm_cpu_gemm_job row_of_column(const lm_cpu_gemm_job *g) {
  lm_cpu_gemm_job s = *g;
  if (g->n > 1 || g->m == 1 || g->ldc != 1 || (!g->b.transposed && g->b.ld != 1)) return s;
  s.m = 1, s.n = g->m;
  s.a = (lm_gemm_matrix){.data = g->b.data, .ld = g->k, .step = g->b.step};
  s.b = transpose_of(g->a);
  s.ldc = g->m;
  return s;
}

/* Returns true for one row of float64 times a transposed matrix, which otherwise must be packed. */
static bool is_row_of_dots(const lm_cpu_gemm_job *g) {
  return g->dtype == LM_F64 && g->m == 1 && g->b.transposed && (!g->a.transposed || g->a.ld == 1);
}

static lm_status multiply_member(const lm_cpu_gemm_job *g, int64_t i) {
  lm_cpu_gemm_job s = batch_member(g, i);
  if (is_row_dots(&s)) return multiply_by_row_dots(&s);
  s = row_of_column(&s);
  if (is_skinny(&s)) return multiply_skinny(&s);
  if (!is_row_of_dots(&s)) return multiply_matrix(&s);
  s.batch = s.n, s.n = 1;
  s.a.step = 0, s.b.step = s.b.ld, s.step_c = 1;
  multiply_by_dots(&s);
  return LM_OK;
}

/* Returns true if the kernel for g takes a bias: a column that becomes a row, and dots, which are numbers, do not. */
static bool takes_bias(const lm_cpu_gemm_job *g) {
  return is_row_dots(g) || (has_panels(g) && g->n > 1 && !is_row_of_dots(g));
}

bool lm_cpu_gemm_adds_once(const lm_cpu_gemm_job *g) {
  if (g->batch != 1 || g->m < 2 || g->n < 2 || !has_panels(g) || is_row_dots(g) || is_small(g) || is_skinny(g) ||
      is_deep(g))
    return false;
  const panels_job j = panels_job_of(g);
  return has_sums(&j) || g->k <= j.terms;
}

/* Returns the same product with the bias copied to C. */
static lm_cpu_gemm_job with_bias_in_c(const lm_cpu_gemm_job *g) {
  lm_cpu_gemm_job s = *g;
  const int64_t bytes = (int64_t)lm_dtype_size(g->dtype);
  for (int64_t r = 0; r < g->batch * g->m; r++) {
    char *row = (char *)g->c + (r / g->m * g->step_c + r % g->m * g->ldc) * bytes;
    memcpy(row, g->bias, (size_t)(g->n * bytes));
  }
  s.bias = NULL;
  return s;
}

/* Multiplies matrices of a batch side by side. */
static void multiply_members(void *ctx, int64_t first, int64_t last) {
  const lm_cpu_gemm_job *g = ctx;
  for (int64_t i = first; i < last; i++) lm_parallel_note(multiply_member(g, i));
}

lm_status lm_cpu_gemm(const lm_cpu_gemm_job *g) {
  if (g->batch <= 0 || g->m <= 0 || g->n <= 0) return LM_OK;
  if (g->alpha == 0 && g->k > 0) { /* infinities and NaN in A or B do not count, as in BLAS */
    lm_cpu_gemm_job s = *g;
    s.k = 0;
    return lm_cpu_gemm(&s);
  }
  if (g->bias && !takes_bias(g)) {
    const lm_cpu_gemm_job s = with_bias_in_c(g);
    return lm_cpu_gemm(&s);
  }
  const bool dots = is_row_dots(g);
  if (dots && is_one_run(g)) return multiply_by_row_dots(g);
  if (!dots && is_small(g)) return multiply_small_batch(g);
  if (is_dot(g)) {
    multiply_by_dots(g);
    return LM_OK;
  }
  /* Runs matrices of a batch side by side, unless threads take fewer rounds for one matrix after the other. */
  double work_ns = g->batch > 1 && !g->alone ? gemm_work(g) * (double)g->batch / gemm_rate(g->dtype) : 0;
  int64_t threads = lm_threads_for(work_ns), of_one = lm_threads_for(gemm_work(g) / gemm_rate(g->dtype));
  if (threads > 1 && lm_ceil_div(g->batch, threads) * of_one <= g->batch)
    return lm_parallel(g->batch, work_ns, 0, multiply_members, (void *)g);
  for (int64_t i = 0; i < g->batch; i++) NEED(multiply_member(g, i));
  return LM_OK;
}

/* Returns true where bfloat16 wins. Intel's vdpbf16ps does half the arithmetic of the float32 instructions in the same
 * time (88 against 178 GF/s a core on an Emerald Rapids); AMD's does twice as much. */
bool lm_cpu_gemm_has_bf16(void) {
#if defined(__x86_64__)
  return LM_ISA_PICK(lm_panel_loops_BF16)->product && __builtin_cpu_supports("avx512bf16") &&
         !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

/* Multiplies bfloat16 by oneDNN's tiles (AMX): matrices of a batch, or parts of one. It rounds sums by a part's sizes,
 * which are the same for any number of threads. */
static void multiply_bf16(void *ctx, int64_t first, int64_t last) {
  parts_job *j = ctx;
  for (int64_t i = first; i < last; i++) {
    lm_cpu_gemm_job s = j->g->batch > 1 ? batch_member(j->g, i) : slice_of(j, i);
    bool done_ = true;
    if (s.m > 0 && s.n > 0) lm_parallel_note(lm_dnn_gemm_bf16(&s, &done_));
    if (!done_) j->declined = true;
  }
}

lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *g, bool *done_) {
  enum { ROWS = 256, COLUMNS = 1024 }; /* rows and columns of a part of C */
  *done_ = false;
  if (g->alpha == 0) return LM_OK;
  double work_ns = gemm_work(g) * (double)g->batch / gemm_rate(LM_BF16);
  parts_job job = {.g = g, .of_columns = lm_ceil_div(g->n, COLUMNS)};
  job.parts = job.of_columns * lm_ceil_div(g->m, ROWS);
  NEED(lm_parallel(g->batch > 1 ? g->batch : job.parts, work_ns, 0, multiply_bf16, &job));
  *done_ = !job.declined;
  return LM_OK;
}
