/* Computes Fourier transforms of complex and real lines, of frames (stft), and products of transforms. */
#include <string.h>

#include "backend/cpu/fft/lines.h"
#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/nontemporal_copy.h"
#include "op_args_fourier.h"

/* A transposition of one batch [n, inner] of pairs. */
typedef struct transposing {
  const char *from;
  char *to;
  int64_t n, inner;
  size_t pair;
} transposing;

static void transpose_rows(void *ctx, int64_t first, int64_t last) {
  const transposing *t = ctx;
  for (int64_t i = first; i < last; i++)
    for (int64_t k = 0; k < t->n; k++)
      memcpy(t->to + t->pair * (size_t)(i * t->n + k), t->from + t->pair * (size_t)(k * t->inner + i), t->pair);
}

/* Transforms lines that are not dense, by dense copies of one batch's. */
static lm_status copied_lines(const lm_fft_plan *p, int64_t n, int64_t batches, int64_t inner, const lm_fft_c2c_args *a,
                              lm_tensor *out) {
  size_t pair = 2 * lm_dtype_size(p->dtype), batch = pair * (size_t)(n * inner);
  double work = (double)n * (double)inner;
  LM_WORKSPACE(char, scratch, batch);
  for (int64_t b = 0; b < batches; b++) {
    transposing in = {a->x->data + batch * (size_t)b, scratch, n, inner, pair};
    transposing back = {scratch, out->data + batch * (size_t)b, inner, n, pair};
    lm_parallel(inner, work, 0, transpose_rows, &in);
    NEED(lm_fft_lines(p, inner, scratch, n, scratch, n, a->inverse, a->scale));
    lm_parallel(n, work, 0, transpose_rows, &back);
  }
  return LM_OK;
}

/* Transforms lines whose entries are `inner` pairs apart, side by side. */
static lm_status fft_lines(const lm_fft_plan *p, int64_t inner, int64_t batches, const lm_fft_c2c_args *a,
                           lm_tensor *out) {
  lm_status status;
  int64_t n = p->n;
  const lm_fft_walk w = {.plan = p,
                         .passes = &p->whole,
                         .lines = inner,
                         .batches = batches,
                         .in = {a->x->data, inner, 2, 2 * n * inner},
                         .out = {out->data, inner, 1, n * inner},
                         .swap_in = a->inverse,
                         .swap_out = a->inverse,
                         .scale = a->scale};
  size_t bytes = 2 * lm_dtype_size(p->dtype) * (size_t)(n * inner);
  if (lm_fft_cached_batches(&w, 1, out->data, batches, bytes, lm_use_nontemporal(lm_nbytes(out)), &status))
    return status;
  return lm_fft_run(&w);
}

lm_status lm_cpu_fft_c2c(const lm_fft_c2c_args *a, lm_tensor *const *out) {
  LM_FFT_PLAN *plan = NULL;
  int64_t n = a->x->size[a->dim], inner = 1, batches;
  for (int d = (int)a->dim + 1; d < a->x->ndim - 1; d++) inner *= a->x->size[d];
  batches = a->x->numel / (2 * n * inner);
  NEED(lm_fft_plan_get(n, a->x->dtype, false, &plan));
  if (inner == 1) return lm_fft_lines(plan, batches, a->x->data, n, out[0]->data, n, a->inverse, a->scale);
  return plan->whole.n ? fft_lines(plan, inner, batches, a, out[0]) : copied_lines(plan, n, batches, inner, a, out[0]);
}

/* Completes a walk w that has input and factors, for real lines of even n in blocks: n / 2 pairs on one side, and n / 2
 * + 1 entries on the other. The output is dense. */
static lm_fft_walk real_walk(const lm_fft_plan *plan, int kind, lm_fft_walk w) {
  int64_t h = plan->n;
  w.plan = plan;
  w.passes = &plan->whole;
  w.kind = kind;
  w.swap_in = w.swap_out = kind == LM_FFT_HALF_TO_REAL;
  w.out.entry = 1;
  w.out.line = kind == LM_FFT_REAL_TO_HALF ? h + 1 : h;
  w.out.batch = w.lines * w.out.line;
  w.streams = lm_use_nontemporal(2 * lm_dtype_size(plan->dtype) * (size_t)(w.out.batch * (w.batches ? w.batches : 1)));
  return w;
}

static lm_status real_blocks(const lm_fft_plan *plan, int kind, lm_fft_walk w) {
  w = real_walk(plan, kind, w);
  return lm_fft_run(&w);
}

/* Copies the first n / 2 + 1 entries of a line of odd n; all but the first are multiplied by `inner`. */
static void half_line(lm_dtype dtype, int64_t n, double inner, const void *z, void *x) {
  memcpy(x, z, 2 * lm_dtype_size(dtype) * (size_t)(n / 2 + 1));
  for (int64_t i = 2; i < n + 1; i++) {
    if (dtype == LM_F64)
      ((double *)x)[i] *= inner;
    else
      ((float *)x)[i] *= (float)inner;
  }
}

/* Lines of reals and of the first half of their transforms. */
typedef struct half_lines {
  const lm_fft_plan *plan;
  lm_dtype dtype;
  size_t item;
  int64_t n;
  double inner;
  const char *in; /* r2c: complete transforms of odd n; c2r: halves */
  char *out;
} half_lines;

static void finish_half_lines(void *ctx, int64_t first, int64_t last) {
  const half_lines *j = ctx;
  for (int64_t i = first; i < last; i++) {
    char *line = j->out + 2 * j->item * (size_t)(i * (j->n / 2 + 1));
    if (j->n % 2 == 0)
      lm_fft_loops_of(j->dtype)->part(j->n, j->plan->halves, j->inner, line);
    else
      half_line(j->dtype, j->n, j->inner, j->in + 2 * j->item * (size_t)(i * j->n), line);
  }
}

/* Spreads n reals to pairs of themselves and zeros, or takes the reals out of pairs. */
static void spread_reals(size_t item, int64_t n, const char *reals, char *pairs) {
  memset(pairs, 0, 2 * item * (size_t)n);
  for (size_t i = 0; i < (size_t)n; i++) memcpy(pairs + 2 * item * i, reals + item * i, item);
}
static void gather_reals(size_t item, int64_t n, const char *pairs, char *reals) {
  for (size_t i = 0; i < (size_t)n; i++) memcpy(reals + item * i, pairs + 2 * item * i, item);
}

/* Transforms real lines: a line of even n is one of n / 2 pairs; one of odd n becomes one of n pairs. */
lm_status lm_cpu_fft_r2c(const lm_fft_r2c_args *a, lm_tensor *const *out) {
  LM_FFT_PLAN *plan = NULL;
  lm_dtype dtype = a->x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->x->size[a->x->ndim - 1], lines = a->x->numel / n, step = n / 2 + 1;
  bool even = n % 2 == 0;
  NEED(lm_fft_plan_get(even ? n / 2 : n, dtype, even, &plan));
  if (even && lm_fft_in_blocks(plan, lines))
    return real_blocks(plan, LM_FFT_REAL_TO_HALF,
                       (lm_fft_walk){.lines = lines,
                                     .in = {a->x->data, 1, n, 0},
                                     .out.data = out[0]->data,
                                     .scale = a->scale,
                                     .inner = a->inner});
  LM_WORKSPACE(char, pairs, even ? 0 : 2 * item * (size_t)(n * lines));
  if (even) {
    NEED(lm_fft_lines(plan, lines, a->x->data, n / 2, out[0]->data, step, false, a->scale));
  } else {
    spread_reals(item, n * lines, a->x->data, pairs);
    NEED(lm_fft_lines(plan, lines, pairs, n, pairs, n, false, a->scale));
  }
  half_lines halves = {plan, dtype, item, n, a->inner, pairs, out[0]->data};
  return lm_parallel(lines, (double)lines * (double)n, 0, finish_half_lines, &halves);
}

/* Transforms the rows of each matrix, and then its columns: while it is in a cache, or in two passes. */
lm_status lm_cpu_fft_r2c_2d(const lm_fft_r2c_2d_args *a, lm_tensor *const *out) {
  lm_status status;
  const lm_tensor *x = a->x;
  LM_FFT_PLAN *rows = NULL, *columns = NULL;
  LM_OWNED *half = NULL;
  lm_dtype dtype = x->dtype;
  int64_t m = x->size[x->ndim - 2], n = x->size[x->ndim - 1], step = n / 2 + 1, many = x->numel / (m * n);
  size_t bytes = 2 * lm_dtype_size(dtype) * (size_t)(m * step);
  if (n % 2 == 0) {
    NEED(lm_fft_plan_get(n / 2, dtype, true, &rows));
    NEED(lm_fft_plan_get(m, dtype, false, &columns));
  }
  if (rows && lm_fft_in_blocks(rows, m) && columns->whole.n) {
    const lm_fft_walk steps[] = {
        real_walk(rows, LM_FFT_REAL_TO_HALF,
                  (lm_fft_walk){.lines = m, .in = {x->data, 1, n, m * n}, .scale = a->scale, .inner = 1}),
        {.plan = columns,
         .passes = &columns->whole,
         .lines = step,
         .in = {NULL, step, 2, 0},
         .out = {NULL, step, 1, 0},
         .scale = 1},
    };
    if (lm_fft_cached_batches(steps, 2, out[0]->data, many, bytes, lm_use_nontemporal(lm_nbytes(out[0])), &status))
      return status;
  }
  NEED(lm_tensor_empty(dtype, x->device, out[0]->ndim, out[0]->size, LM_CONTIGUOUS, &half));
  NEED(lm_cpu_fft_r2c(&(lm_fft_r2c_args){.x = (lm_tensor *)x, .scale = a->scale, .inner = 1}, &half));
  return lm_cpu_fft_c2c(&(lm_fft_c2c_args){.x = half, .scale = 1, .dim = x->ndim - 2}, out);
}

/* Transforms frames of the lines of x [b, n], each times the window: directly in blocks, or by copies. */
lm_status lm_cpu_stft_lines(const lm_stft_lines_args *a, lm_tensor *const *out) {
  LM_FFT_PLAN *plan = NULL;
  LM_OWNED *frames = NULL;
  lm_dtype dtype = a->x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->window->numel, length = a->x->size[1], batches = a->x->size[0], lines = out[0]->size[1];
  NEED(lm_fft_plan_get(n % 2 ? n : n / 2, dtype, n % 2 == 0, &plan));
  if (n % 2 == 0 && lm_fft_in_blocks(plan, lines))
    return real_blocks(plan, LM_FFT_REAL_TO_HALF,
                       (lm_fft_walk){.lines = lines,
                                     .batches = batches,
                                     .in = {a->x->data, 1, a->hop, length},
                                     .out.data = out[0]->data,
                                     .scale = a->scale,
                                     .inner = a->inner,
                                     .window = a->window->data});
  NEED(lm_tensor_empty(dtype, a->x->device, 3, (int64_t[]){batches, lines, n}, LM_CONTIGUOUS, &frames));
  memset(frames->data, 0, lm_nbytes(frames));
  for (int64_t i = 0; i < batches * lines; i++)
    lm_fft_loops_of(dtype)->add_product(n, a->x->data + item * (size_t)(i / lines * length + i % lines * a->hop),
                                        a->window->data, frames->data + item * (size_t)(i * n));
  return lm_cpu_fft_r2c(&(lm_fft_r2c_args){.x = frames, .scale = a->scale, .inner = a->inner}, out);
}

/* A job over stretches of `hop` samples of the result. */
typedef struct overlap {
  const lm_overlap_add_args *a;
  lm_tensor *out;
  int64_t each; /* number of stretches in a line */
} overlap;

static void add_stretches(void *ctx, int64_t first, int64_t end) {
  const overlap *j = ctx;
  const lm_overlap_add_args *a = j->a;
  lm_dtype dtype = (lm_dtype)a->frames->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->window->numel, count = a->frames->size[1], length = a->length, hop = a->hop;
  for (int64_t p = first; p < end; p++) {
    int64_t b = p / j->each, i = p % j->each, last = i < count ? i : count - 1;
    int64_t samples = length - i * hop < hop ? length - i * hop : hop;
    char *to = j->out->data + item * (size_t)(b * length + i * hop);
    memset(to, 0, item * (size_t)samples);
    for (int64_t f = i > n / hop ? i - n / hop : 0; f <= last; f++) {
      int64_t at = (i - f) * hop, some = n - at < samples ? n - at : samples;
      if (some <= 0) continue;
      lm_fft_loops_of(dtype)->add_product(some, a->frames->data + item * (size_t)((b * count + f) * n + at),
                                          a->window->data + item * (size_t)at, to);
    }
  }
}

lm_status lm_cpu_overlap_add(const lm_overlap_add_args *a, lm_tensor *const *out) {
  overlap job = {a, out[0], lm_ceil_div(a->length, a->hop)};
  return lm_parallel(job.each * a->frames->size[0], (double)a->frames->numel / 2, 0, add_stretches, &job);
}

/* Writes the complete line of odd n from its first n / 2 + 1 entries: the rest are the conjugates. */
static void whole_line(lm_dtype dtype, int64_t n, double inner, const void *x, void *z) {
  for (int64_t k = 0; k < n; k++) {
    int64_t at = k <= n / 2 ? k : n - k;
    if (dtype == LM_F64) {
      const double *a = (const double *)x + 2 * at;
      ((double *)z)[2 * k] = k == 0 ? a[0] : a[0] * inner;
      ((double *)z)[2 * k + 1] = k == 0 ? 0 : k == at ? a[1] * inner : -a[1] * inner;
    } else {
      const float *a = (const float *)x + 2 * at;
      float factor = (float)inner;
      ((float *)z)[2 * k] = k == 0 ? a[0] : a[0] * factor;
      ((float *)z)[2 * k + 1] = k == 0 ? 0 : k == at ? a[1] * factor : -a[1] * factor;
    }
  }
}

static void whole_lines(void *ctx, int64_t first, int64_t last) {
  const half_lines *j = ctx;
  for (int64_t i = first; i < last; i++) {
    const char *line = j->in + 2 * j->item * (size_t)(i * (j->n / 2 + 1));
    if (j->n % 2 == 0)
      lm_fft_loops_of(j->dtype)->join(j->n, j->plan->halves, j->inner, line, j->out + j->item * (size_t)(i * j->n));
    else
      whole_line(j->dtype, j->n, j->inner, line, j->out + 2 * j->item * (size_t)(i * j->n));
  }
}

lm_status lm_cpu_fft_c2r(const lm_fft_c2r_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  LM_FFT_PLAN *plan = NULL;
  LM_OWNED *dense = NULL;
  lm_dtype dtype = x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->n, step = n / 2 + 1, lines = x->numel / (2 * step);
  bool even = n % 2 == 0;
  NEED(lm_fft_plan_get(even ? n / 2 : n, dtype, even, &plan));
  if (even && lm_fft_in_blocks(plan, lines)) {
    lm_fft_walk w = {.lines = lines,
                     .in = {x->data, 1, 2 * step, 0},
                     .out.data = out[0]->data,
                     .scale = a->scale,
                     .inner = a->inner};
    if (!lm_is_contiguous(x)) { /* the lines of a batch are side by side */
      w.lines = w.in.entry = x->size[x->ndim - 3];
      w.batches = lines / w.lines;
      w.in.line = 2;
      w.in.batch = 2 * step * w.lines;
    }
    return real_blocks(plan, LM_FFT_HALF_TO_REAL, w);
  }
  NEED(lm_row_major(x, &dense));
  LM_WORKSPACE(char, pairs, even ? 0 : 2 * item * (size_t)(n * lines));
  char *z = even ? out[0]->data : pairs;
  half_lines halves = {plan, dtype, item, n, a->inner, dense->data, z};
  lm_parallel(lines, (double)lines * (double)n, 0, whole_lines, &halves);
  NEED(lm_fft_lines(plan, lines, z, even ? n / 2 : n, z, even ? n / 2 : n, true, a->scale));
  if (!even) gather_reals(item, n * lines, z, out[0]->data);
  return LM_OK;
}

typedef struct multiplying {
  const lm_fft_multiply_args *a;
  lm_tensor *out;
} multiplying;

/* Computes entries begin to end - 1 of the products; x's and other's are repeated. */
#define LM_PRODUCTS(type)                                                                                  \
  static void products_##type(void *ctx, int64_t begin, int64_t end) {                                     \
    const multiplying *j = ctx;                                                                            \
    const lm_tensor *x = j->a->x, *other = j->a->other;                                                    \
    const int64_t nx = x->numel / 2, no = other->numel / 2, shorter = nx < no ? nx : no;                   \
    const type sign = j->a->conjugate ? -1 : 1;                                                            \
    for (int64_t i = begin, stop; i < end; i = stop) {                                                     \
      stop = (i / shorter + 1) * shorter;                                                                  \
      if (stop > end) stop = end;                                                                          \
      const type *a = (const type *)x->data + 2 * (i % nx), *b = (const type *)other->data + 2 * (i % no); \
      type *y = (type *)j->out->data + 2 * i;                                                              \
      for (int64_t k = 0; k < 2 * (stop - i); k += 2) {                                                    \
        type re = a[k], im = a[k + 1], re2 = b[k], im2 = b[k + 1] * sign;                                  \
        y[k] = re * re2 - im * im2;                                                                        \
        y[k + 1] = im * re2 + re * im2;                                                                    \
      }                                                                                                    \
    }                                                                                                      \
  }
LM_PRODUCTS(float)
LM_PRODUCTS(double)
#undef LM_PRODUCTS

lm_status lm_cpu_fft_multiply(const lm_fft_multiply_args *a, lm_tensor *const *out) {
  return lm_parallel(out[0]->numel / 2, (double)out[0]->numel, 0,
                     out[0]->dtype == LM_F64 ? products_double : products_float, &(multiplying){a, out[0]});
}
