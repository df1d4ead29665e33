/* Transforms blocks of lines, and lines that are long, few, or of a length with a large prime factor. */
#include "backend/cpu/fft/lines.h"

#include <string.h>

#include "backend/cpu/nontemporal_copy.h"

enum { W = LM_FFT_LANES };

static size_t block_bytes(lm_dtype dtype, int64_t n) { return 2 * lm_dtype_size(dtype) * W * (size_t)n; }
static lm_fft_block block_at(void *memory, lm_dtype dtype, int64_t n, bool swapped) {
  char *re = memory, *im = re + block_bytes(dtype, n) / 2;
  return swapped ? (lm_fft_block){im, re} : (lm_fft_block){re, im};
}

/* Transforms the block a, with b as scratch memory, and returns the one of them that has the result. */
static lm_fft_block run_passes(const struct lm_fft_loops *loops, lm_dtype dtype, const lm_fft_passes *p, lm_fft_block a,
                               lm_fft_block b) {
  int64_t s = 1, left = p->n;
  const char *twiddle = p->twiddle;
  for (int i = 0; i < p->count; i++) {
    int radix = p->radix[i];
    int64_t m = left / radix;
    loops->stage(radix, m, s, twiddle, a, b);
    twiddle += 2 * lm_dtype_size(dtype) * (size_t)(m * (radix - 1));
    s *= radix;
    left = m;
    lm_fft_block t = a;
    a = b;
    b = t;
  }
  return a;
}

/* Multiplies row k of the block from column `first` on by its twiddle factors. */
static void rotate(const struct lm_fft_loops *loops, const lm_fft_plan *p, int64_t first, void *pairs, lm_fft_block x) {
  for (int64_t k = 0; k < p->first.n; k++) {
    int64_t a = first * k;
    const double *c = p->coarse + 2 * (a / p->fine_count), *f = p->fine + 2 * (a % p->fine_count);
    double re = c[0] * f[0] - c[1] * f[1], im = c[0] * f[1] + c[1] * f[0];
    lm_scalar_put(p->dtype, pairs, 2 * k, re);
    lm_scalar_put(p->dtype, pairs, 2 * k + 1, im);
  }
  loops->turn(p->first.n, pairs, p->lane, x);
}

static void run_block(const lm_fft_walk *w, const struct lm_fft_loops *loops, int64_t block, char *own, size_t bytes) {
  lm_dtype dtype = w->plan->dtype;
  int64_t n = w->passes->n, each = lm_ceil_div(w->lines, W), batch = block / each, line = block % each * W;
  int64_t entries_in = n + (w->kind == LM_FFT_HALF_TO_REAL), entries_out = n + (w->kind == LM_FFT_REAL_TO_HALF);
  int lanes = w->lines - line < W ? (int)(w->lines - line) : W;
  size_t pair = 2 * lm_dtype_size(dtype);
  const char *in = w->in.data + pair / 2 * (size_t)(batch * w->in.batch + line * w->in.line);
  char *out = w->out.data + pair * (size_t)(batch * w->out.batch + line * w->out.line);
  lm_fft_block from = block_at(own, dtype, n + 1, false), to = block_at(own + bytes, dtype, n + 1, false);
  loops->load(in, w->in.entry, w->in.line, entries_in, lanes,
              w->swap_in && w->kind == LM_FFT_COMPLEX ? (lm_fft_block){from.im, from.re} : from);
  if (w->window) loops->weigh(n, w->window, from);
  if (w->kind == LM_FFT_HALF_TO_REAL) {
    loops->join_block(2 * n, w->plan->halves, w->inner, from);
    if (w->swap_in) from = (lm_fft_block){from.im, from.re};
  }
  from = run_passes(loops, dtype, w->passes, from, to);
  if (w->transposed) rotate(loops, w->plan, line, own + 2 * bytes, from);
  if (w->kind == LM_FFT_REAL_TO_HALF) loops->part_block(2 * n, w->plan->halves, w->inner, from);
  bool dense = w->out.entry == 1 && w->out.line == entries_out;
  char *spare = (char *)(from.re < from.im ? from.re : from.im) == own ? own + bytes : own;
  spare += (uintptr_t)out % LM_NONTEMPORAL_LINE; /* aligned to cache lines as `out` is */
  loops->store(w->swap_out ? (lm_fft_block){from.im, from.re} : from, w->out.entry, w->out.line, entries_out, lanes,
               w->scale, dense ? spare : out);
  if (dense) loops->copy(w->streams, out, spare, pair * (size_t)(lanes * entries_out));
}

/* Return the bytes of one of a thread's two blocks of n entries, and of all of its scratch memory. */
static size_t own_block(lm_dtype dtype, int64_t n) {
  return lm_round_up(block_bytes(dtype, n + 1), 64) + LM_NONTEMPORAL_LINE;
}
static size_t own_scratch(lm_dtype dtype, int64_t n) {
  return 2 * own_block(dtype, n) + lm_round_up(2 * lm_dtype_size(dtype) * (size_t)n, 64);
}
static int64_t blocks_of(const lm_fft_walk *w) { return lm_ceil_div(w->lines, W) * (w->batches ? w->batches : 1); }

typedef struct batches {
  const lm_fft_walk *steps;
  int count;
  char *out;
  int64_t many;
  size_t bytes; /* bytes of a batch's result */
  bool streams;
  size_t own; /* bytes of scratch for a block */
} batches;

static void run_batch(const batches *all, int64_t b, char *own, char *result) {
  const lm_fft_walk *first = all->steps;
  lm_dtype dtype = first->plan->dtype;
  const struct lm_fft_loops *loops = lm_fft_loops_of(dtype);
  char *out = all->out + all->bytes * (size_t)b;
  result += (uintptr_t)out % LM_NONTEMPORAL_LINE;
  for (int s = 0; s < all->count; s++) {
    lm_fft_walk one = all->steps[s];
    one.batches = 1;
    one.in.data = s == 0 ? one.in.data + lm_dtype_size(dtype) * (size_t)(b * one.in.batch) : result;
    one.out.data = result;
    one.streams = false;
    for (int64_t k = 0; k < blocks_of(&one); k++) run_block(&one, loops, k, own, own_block(dtype, one.passes->n));
  }
  loops->copy(all->streams, out, result, all->bytes);
}

static void run_batches(void *ctx, int64_t first, int64_t last) {
  const batches *all = ctx;
  for (int64_t b = first; b < last; b++) run_batch(all, b, lm_scratch(), (char *)lm_scratch() + all->own);
  if (all->streams) lm_nontemporal_fence();
}

bool lm_fft_cached_batches(const lm_fft_walk *steps, int count, char *out, int64_t many, size_t bytes, bool streams,
                           lm_status *status_of) {
  enum { CACHED_BYTES = 1 << 20 };
  size_t whole = (bytes + 2 * LM_NONTEMPORAL_LINE) / LM_NONTEMPORAL_LINE * LM_NONTEMPORAL_LINE;
  double work = 0;
  batches all = {steps, count, out, many, bytes, streams, 0};
  for (int s = 0; s < count; s++) {
    size_t own = own_scratch(steps[s].plan->dtype, steps[s].passes->n);
    if (own > all.own) all.own = own;
    work += (double)many * (double)steps[s].lines * (double)steps[s].passes->n * 2;
  }
  if (many < lm_threads_for(work) || bytes > CACHED_BYTES) return false;
  *status_of = lm_parallel(many, work, all.own + whole, run_batches, &all);
  return true;
}

static void run_blocks(void *ctx, int64_t first, int64_t last) {
  const lm_fft_walk *w = ctx;
  lm_dtype dtype = w->plan->dtype;
  for (int64_t b = first; b < last; b++)
    run_block(w, lm_fft_loops_of(dtype), b, lm_scratch(), own_block(dtype, w->passes->n));
  if (w->streams) lm_nontemporal_fence();
}

lm_status lm_fft_run(const lm_fft_walk *w) {
  int64_t n = w->passes->n, blocks = blocks_of(w);
  return lm_parallel(blocks, (double)blocks * W * (double)n * 2, own_scratch(w->plan->dtype, n), run_blocks, (void *)w);
}

/* Transforms one line, as n1 rows of n2: entry j = j1 n2 + j2 becomes k = k1 + n1 k2. */
static lm_status split_line(const lm_fft_plan *p, const char *in, char *out, bool inverse, double scale,
                            void *scratch) {
  int64_t n1 = p->first.n, n2 = p->second.n;
  NEED(lm_fft_run(&(lm_fft_walk){.plan = p,
                                 .passes = &p->first,
                                 .lines = n2,
                                 .in = {(char *)in, n2, 2, 0},
                                 .out = {scratch, 1, n1, 0},
                                 .swap_in = inverse,
                                 .transposed = true,
                                 .scale = 1}));
  return lm_fft_run(&(lm_fft_walk){.plan = p,
                                   .passes = &p->second,
                                   .lines = n1,
                                   .in = {scratch, n1, 2, 0},
                                   .out = {out, n1, 1, 0},
                                   .swap_out = inverse,
                                   .scale = scale});
}

/* Computes out[i] = x[i] times chirp[i] times scale; x and out may have their parts swapped. */
static void chirped(const lm_fft_plan *p, const void *x, bool swap_x, double scale, bool swap_out, void *out) {
  for (int64_t i = 0; i < p->n; i++) {
    double re, im, cr, ci;
    if (p->dtype == LM_F64) {
      const double *a = (const double *)x + 2 * i, *c = (const double *)p->chirp + 2 * i;
      re = a[swap_x], im = a[!swap_x], cr = c[0], ci = c[1];
    } else {
      const float *a = (const float *)x + 2 * i, *c = (const float *)p->chirp + 2 * i;
      re = (double)a[swap_x], im = (double)a[!swap_x], cr = (double)c[0], ci = (double)c[1];
    }
    double r = (re * cr - im * ci) * scale, j = (re * ci + im * cr) * scale;
    if (p->dtype == LM_F64) {
      ((double *)out)[2 * i + swap_out] = r;
      ((double *)out)[2 * i + !swap_out] = j;
    } else {
      ((float *)out)[2 * i + swap_out] = (float)r;
      ((float *)out)[2 * i + !swap_out] = (float)j;
    }
  }
}

/* Lines that are convolved with a chirp in scratch memory, with their sources and results. */
typedef struct chirps {
  const lm_fft_plan *p;
  const char *in;
  char *out, *scratch;
  size_t in_bytes, out_bytes, bytes; /* bytes from line to line */
  bool inverse;
  double scale;
} chirps;

static void begin_chirps(void *ctx, int64_t first, int64_t last) {
  const chirps *c = ctx;
  size_t used = 2 * lm_dtype_size(c->p->dtype) * (size_t)c->p->n;
  for (int64_t i = first; i < last; i++) {
    char *line = c->scratch + c->bytes * (size_t)i;
    chirped(c->p, c->in + c->in_bytes * (size_t)i, c->inverse, 1, false, line);
    memset(line + used, 0, c->bytes - used);
  }
}

static void filter_chirps(void *ctx, int64_t first, int64_t last) {
  const chirps *c = ctx;
  for (int64_t i = first; i < last; i++)
    lm_fft_loops_of(c->p->dtype)->multiply(c->p->powers->n, c->p->filter, c->scratch + c->bytes * (size_t)i);
}

static void end_chirps(void *ctx, int64_t first, int64_t last) {
  const chirps *c = ctx;
  for (int64_t i = first; i < last; i++)
    chirped(c->p, c->scratch + c->bytes * (size_t)i, false, c->scale, c->inverse, c->out + c->out_bytes * (size_t)i);
}

static lm_status transform_by_chirp(const lm_fft_plan *p, int64_t lines, const char *in, int64_t in_step, char *out,
                                    int64_t out_step, bool inverse, double scale) {
  const int64_t m = p->powers->n, max_lines = lm_min(lines, lm_max((1 << 22) / m, 1));
  const size_t pair = 2 * lm_dtype_size(p->dtype);
  LM_WORKSPACE(char, scratch, pair *(size_t)(m * max_lines));
  for (int64_t begin = 0; begin < lines; begin += max_lines) {
    const int64_t count = lm_min(lines - begin, max_lines);
    const double work = (double)count * (double)m * 3;
    chirps c = {.p = p,
                .in = in + pair * (size_t)(begin * in_step),
                .out = out + pair * (size_t)(begin * out_step),
                .scratch = scratch,
                .in_bytes = pair * (size_t)in_step,
                .out_bytes = pair * (size_t)out_step,
                .bytes = pair * (size_t)m,
                .inverse = inverse,
                .scale = scale};
    lm_parallel(count, work, 0, begin_chirps, &c);
    NEED(lm_fft_lines(p->powers, count, scratch, m, scratch, m, false, 1));
    lm_parallel(count, work, 0, filter_chirps, &c);
    NEED(lm_fft_lines(p->powers, count, scratch, m, scratch, m, true, 1));
    lm_parallel(count, work, 0, end_chirps, &c);
  }
  return LM_OK;
}

bool lm_fft_in_blocks(const lm_fft_plan *p, int64_t lines) { return p->whole.n && (!p->first.n || lines >= W / 2); }

lm_status lm_fft_lines(const lm_fft_plan *p, int64_t lines, const void *in, int64_t in_step, void *out,
                       int64_t out_step, bool inverse, double scale) {
  size_t pair = 2 * lm_dtype_size(p->dtype);
  if (p->powers) return transform_by_chirp(p, lines, in, in_step, out, out_step, inverse, scale);
  if (lm_fft_in_blocks(p, lines)) {
    return lm_fft_run(
        &(lm_fft_walk){.plan = p,
                       .passes = &p->whole,
                       .lines = lines,
                       .in = {(char *)in, 1, 2 * in_step, 0},
                       .out = {out, 1, out_step, 0},
                       .swap_in = inverse,
                       .swap_out = inverse,
                       .streams = out != in && out_step == p->n && lm_use_nontemporal(pair * (size_t)(lines * p->n)),
                       .scale = scale});
  }
  LM_WORKSPACE(char, scratch, pair *(size_t)p->n);
  for (int64_t i = 0; i < lines; i++)
    NEED(split_line(p, (const char *)in + pair * (size_t)(i * in_step), (char *)out + pair * (size_t)(i * out_step),
                    inverse, scale, scratch));
  return LM_OK;
}
