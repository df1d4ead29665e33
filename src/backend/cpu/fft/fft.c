/* Fourier transforms of lines. */
#include <string.h>

#include "backend/cpu/fft/plan.h"
#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/stream_copy.h"

enum { W = LM_FFT_LANES };

/* Memory for a call, from the allocator that keeps it for the next. */
static lm_status scratch(size_t bytes, lm_tensor **out) {
  return lm_tensor_empty(LM_F64, LM_DEVICE(LM_CPU, 0), 1, (int64_t[]){(int64_t)(bytes + 7) / 8}, LM_CONTIGUOUS, out);
}

static size_t block_bytes(lm_dtype dtype, int64_t n) { return 2 * lm_dtype_size(dtype) * W * (size_t)n; }
static lm_fft_block block_at(void *memory, lm_dtype dtype, int64_t n, bool swapped) {
  char *re = memory, *im = re + block_bytes(dtype, n) / 2;
  return swapped ? (lm_fft_block){im, re} : (lm_fft_block){re, im};
}

/* Transforms the block *a, with *b as room, and gives the one that has the result. */
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

/* What one kind of blocks is made of and goes to, in pairs, but in_line and in_batch, the steps from line to line and
 * from one batch of lines to the next, in numbers; the inverse swaps real and imaginary parts, twice. Half of a real
 * line's transform has an entry more than the pairs that the line is read as. */
enum { COMPLEX, REAL_TO_HALF, HALF_TO_REAL };
typedef struct walk {
  const lm_fft_plan *plan;
  const lm_fft_passes *passes;
  int64_t lines;
  const char *in;
  char *out;
  int64_t in_entry, in_line, out_entry, out_line, batches, in_batch, out_batch;
  int kind;
  bool swap_in, swap_out, turned;
  bool streams; /* dense lines, which nobody reads at once */
  double scale;
  double inner;       /* of half a transform: a factor for the entries that stand for two */
  const void *window; /* factors of real lines; NULL: none */
} walk;

/* The numbers by which row k of the block from column `first` on is turned. */
static void turn(const struct lm_fft_loops *loops, const lm_fft_plan *p, int64_t first, void *pairs, lm_fft_block x) {
  for (int64_t k = 0; k < p->first.n; k++) {
    int64_t a = first * k;
    const double *c = p->coarse + 2 * (a / p->fine_count), *f = p->fine + 2 * (a % p->fine_count);
    double re = c[0] * f[0] - c[1] * f[1], im = c[0] * f[1] + c[1] * f[0];
    if (p->dtype == LM_F64) {
      ((double *)pairs)[2 * k] = re;
      ((double *)pairs)[2 * k + 1] = im;
    } else {
      ((float *)pairs)[2 * k] = (float)re;
      ((float *)pairs)[2 * k + 1] = (float)im;
    }
  }
  loops->turn(p->first.n, pairs, p->lane, x);
}

static void run_block(const walk *w, const struct lm_fft_loops *loops, int64_t block, char *own, size_t bytes) {
  lm_dtype dtype = w->plan->dtype;
  int64_t n = w->passes->n, each = (w->lines + W - 1) / W, batch = block / each, line = block % each * W;
  int64_t entries_in = n + (w->kind == HALF_TO_REAL), entries_out = n + (w->kind == REAL_TO_HALF);
  int lanes = w->lines - line < W ? (int)(w->lines - line) : W;
  size_t pair = 2 * lm_dtype_size(dtype);
  const char *in = w->in + pair / 2 * (size_t)(batch * w->in_batch + line * w->in_line);
  char *out = w->out + pair * (size_t)(batch * w->out_batch + line * w->out_line);
  lm_fft_block from = block_at(own, dtype, n + 1, false), to = block_at(own + bytes, dtype, n + 1, false);
  loops->load(in, w->in_entry, w->in_line, entries_in, lanes,
              w->swap_in && w->kind == COMPLEX ? (lm_fft_block){from.im, from.re} : from);
  if (w->window) loops->weigh(n, w->window, from);
  if (w->kind == HALF_TO_REAL) {
    loops->join_block(2 * n, w->plan->halves, w->inner, from);
    if (w->swap_in) from = (lm_fft_block){from.im, from.re};
  }
  from = run_passes(loops, dtype, w->passes, from, to);
  if (w->turned) turn(loops, w->plan, line, own + 2 * bytes, from);
  if (w->kind == REAL_TO_HALF) loops->part_block(2 * n, w->plan->halves, w->inner, from);
  bool dense = w->out_entry == 1 && w->out_line == entries_out;
  char *spare = (char *)(from.re < from.im ? from.re : from.im) == own ? own + bytes : own;
  spare += (uintptr_t)out % LM_STREAM_LINE; /* so that lines of the cache are one there and here */
  loops->store(w->swap_out ? (lm_fft_block){from.im, from.re} : from, w->out_entry, w->out_line, entries_out, lanes,
               w->scale, dense ? spare : out);
  if (dense) loops->copy(w->streams, out, spare, pair * (size_t)(lanes * entries_out));
}

/* Bytes for one of a thread's two blocks of n entries, and for all of what it needs. */
static size_t own_block(lm_dtype dtype, int64_t n) {
  return (block_bytes(dtype, n + 1) + 63) / 64 * 64 + LM_STREAM_LINE;
}
static size_t own_room(lm_dtype dtype, int64_t n) {
  return 2 * own_block(dtype, n) + (2 * lm_dtype_size(dtype) * (size_t)n + 63) / 64 * 64;
}
static int64_t blocks_of(const walk *w) { return (w->lines + W - 1) / W * (w->batches ? w->batches : 1); }

/* Batches whose results are each dense, by way of memory that stays in a cache: blocks write columns. */
static lm_status run_batches(const walk *w, int threads, size_t bytes_of_batch) {
  lm_status status;
  lm_dtype dtype = w->plan->dtype;
  size_t item = lm_dtype_size(dtype), each = own_room(dtype, w->passes->n),
         all = each + bytes_of_batch + 2 * LM_STREAM_LINE;
  lm_tensor *room = NULL;
  if (threads > w->batches) threads = (int)w->batches;
  all = all / LM_STREAM_LINE * LM_STREAM_LINE;
  TRY(scratch(all * (size_t)threads, &room));
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    const struct lm_fft_loops *loops = lm_fft_loops_of(dtype);
    char *own = room->data + all * (size_t)t;
    int64_t end = lm_cpu_share_begin(w->batches, t + 1, threads);
    for (int64_t b = lm_cpu_share_begin(w->batches, t, threads); b < end; b++) {
      walk one = *w;
      char *out = w->out + 2 * item * (size_t)(b * w->out_batch);
      one.batches = 1;
      one.in += item * (size_t)(b * w->in_batch);
      one.out = own + each + (uintptr_t)out % LM_STREAM_LINE;
      for (int64_t k = 0; k < blocks_of(&one); k++) run_block(&one, loops, k, own, own_block(dtype, w->passes->n));
      loops->copy(w->streams, out, one.out, bytes_of_batch);
    }
    if (w->streams) lm_stream_end();
  }
done:
  lm_release(room);
  return status;
}

static lm_status run_blocks(const walk *w) {
  enum { CACHED_BYTES = 1 << 20 };
  lm_status status;
  lm_dtype dtype = w->plan->dtype;
  int64_t n = w->passes->n, blocks = blocks_of(w);
  size_t bytes = own_block(dtype, n), each = own_room(dtype, n),
         bytes_of_batch = 2 * lm_dtype_size(dtype) * (size_t)(n * w->lines);
  int threads = lm_cpu_share((double)blocks * W * (double)n * 2);
  if (w->batches >= threads && w->out_entry > 1 && bytes_of_batch <= CACHED_BYTES)
    return run_batches(w, threads, bytes_of_batch);
  lm_tensor *room = NULL;
  if (threads > blocks) threads = (int)blocks;
  TRY(scratch(each * (size_t)threads, &room));
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t end = lm_cpu_share_begin(blocks, t + 1, threads);
    for (int64_t b = lm_cpu_share_begin(blocks, t, threads); b < end; b++)
      run_block(w, lm_fft_loops_of(dtype), b, room->data + each * (size_t)t, bytes);
    if (w->streams) lm_stream_end();
  }
done:
  lm_release(room);
  return status;
}

/* One line j = j1 n2 + j2 becomes k = k1 + n1 k2. */
static lm_status split_line(const lm_fft_plan *p, const char *in, char *out, bool inverse, double scale,
                            lm_tensor *room) {
  lm_status status;
  int64_t n1 = p->first.n, n2 = p->second.n;
  TRY(run_blocks(&(walk){.plan = p,
                         .passes = &p->first,
                         .lines = n2,
                         .in = in,
                         .in_entry = n2,
                         .in_line = 2,
                         .out = room->data,
                         .out_entry = 1,
                         .out_line = n1,
                         .swap_in = inverse,
                         .turned = true,
                         .scale = 1}));
  TRY(run_blocks(&(walk){.plan = p,
                         .passes = &p->second,
                         .lines = n1,
                         .in = room->data,
                         .in_entry = n1,
                         .in_line = 2,
                         .out = out,
                         .out_entry = n1,
                         .out_line = 1,
                         .swap_out = inverse,
                         .scale = scale}));
done:
  return status;
}

/* out[i] = x[i] times chirp[i] times scale; x and out may have their parts swapped. */
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

static lm_status by_chirp(const lm_fft_plan *p, int64_t lines, const char *in, int64_t in_step, char *out,
                          int64_t out_step, bool inverse, double scale) {
  lm_status status = LM_OK;
  lm_tensor *room = NULL;
  int64_t m = p->powers->n, most = (1 << 22) / m > 0 ? (1 << 22) / m : 1;
  size_t pair = 2 * lm_dtype_size(p->dtype);
  if (most > lines) most = lines;
  TRY(scratch(pair * (size_t)(m * most), &room));
  for (int64_t begin = 0; begin < lines; begin += most) {
    int64_t count = lines - begin < most ? lines - begin : most;
    int threads = lm_cpu_share((double)count * (double)m * 3);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++) {
      char *line = room->data + pair * (size_t)(i * m);
      chirped(p, in + pair * (size_t)((begin + i) * in_step), inverse, 1, false, line);
      memset(line + pair * (size_t)p->n, 0, pair * (size_t)(m - p->n));
    }
    TRY(lm_fft_lines(p->powers, count, room->data, m, room->data, m, false, 1));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++)
      lm_fft_loops_of(p->dtype)->multiply(m, p->filter, room->data + pair * (size_t)(i * m));
    TRY(lm_fft_lines(p->powers, count, room->data, m, room->data, m, true, 1));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++)
      chirped(p, room->data + pair * (size_t)(i * m), false, scale, inverse,
              out + pair * (size_t)((begin + i) * out_step));
  }
done:
  lm_release(room);
  return status;
}

/* Whether lines of a plan go through blocks. */
static bool in_blocks(const lm_fft_plan *p, int64_t lines) { return p->whole.n && (!p->first.n || lines >= W / 2); }

lm_status lm_fft_lines(const lm_fft_plan *p, int64_t lines, const void *in, int64_t in_step, void *out,
                       int64_t out_step, bool inverse, double scale) {
  lm_status status = LM_OK;
  lm_tensor *room = NULL;
  size_t pair = 2 * lm_dtype_size(p->dtype);
  if (p->powers) return by_chirp(p, lines, in, in_step, out, out_step, inverse, scale);
  if (in_blocks(p, lines)) {
    return run_blocks(&(walk){.plan = p,
                              .passes = &p->whole,
                              .lines = lines,
                              .in = in,
                              .in_entry = 1,
                              .in_line = 2 * in_step,
                              .out = out,
                              .out_entry = 1,
                              .out_line = out_step,
                              .swap_in = inverse,
                              .swap_out = inverse,
                              .streams = out != in && out_step == p->n && lm_stream_pays(pair * (size_t)(lines * p->n)),
                              .scale = scale});
  }
  TRY(scratch(pair * (size_t)p->n, &room));
  for (int64_t i = 0; i < lines; i++)
    TRY(split_line(p, (const char *)in + pair * (size_t)(i * in_step), (char *)out + pair * (size_t)(i * out_step),
                   inverse, scale, room));
done:
  lm_release(room);
  return status;
}

/* ---- the ops */

/* Lines that are not dense, by dense copies of one batch's. */
static lm_status copied_lines(const lm_fft_plan *p, int64_t n, int64_t batches, int64_t inner, const lm_fft_c2c_args *a,
                              lm_tensor *out) {
  lm_status status;
  lm_tensor *room = NULL;
  size_t pair = 2 * lm_dtype_size(p->dtype);
  int threads = lm_cpu_share((double)n * (double)inner);
  TRY(scratch(pair * (size_t)(n * inner), &room));
  for (int64_t b = 0; b < batches; b++) {
    const char *in = a->x->data + pair * (size_t)(b * n * inner);
    char *to = out->data + pair * (size_t)(b * n * inner);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < inner; i++)
      for (int64_t k = 0; k < n; k++)
        memcpy(room->data + pair * (size_t)(i * n + k), in + pair * (size_t)(k * inner + i), pair);
    TRY(lm_fft_lines(p, inner, room->data, n, room->data, n, a->inverse, a->scale));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < n; k++)
      for (int64_t i = 0; i < inner; i++)
        memcpy(to + pair * (size_t)(k * inner + i), room->data + pair * (size_t)(i * n + k), pair);
  }
done:
  lm_release(room);
  return status;
}

lm_status lm_cpu_fft_c2c(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_fft_c2c_args *a = args;
  lm_fft_plan *plan = NULL;
  int64_t n = a->x->size[a->dim], inner = 1, batches;
  for (int d = (int)a->dim + 1; d < a->x->ndim - 1; d++) inner *= a->x->size[d];
  batches = a->x->numel / (2 * n * inner);
  TRY(lm_fft_plan_of(n, (lm_dtype)a->x->dtype, false, &plan));
  if (inner == 1)
    status = lm_fft_lines(plan, batches, a->x->data, n, out[0]->data, n, a->inverse, a->scale);
  else if (plan->whole.n)
    status = run_blocks(&(walk){.plan = plan,
                                .passes = &plan->whole,
                                .lines = inner,
                                .in = a->x->data,
                                .in_entry = inner,
                                .in_line = 2,
                                .out = out[0]->data,
                                .out_entry = inner,
                                .out_line = 1,
                                .batches = batches,
                                .in_batch = 2 * n * inner,
                                .out_batch = n * inner,
                                .swap_in = a->inverse,
                                .swap_out = a->inverse,
                                .streams = lm_stream_pays(lm_nbytes(out[0])),
                                .scale = a->scale});
  else
    status = copied_lines(plan, n, batches, inner, a, out[0]);
done:
  lm_fft_plan_done(plan);
  return status;
}

/* Real lines of even n through blocks: of n / 2 pairs, with n / 2 + 1 entries on the other side, which is dense. w says
 * where they come from, and by what they are multiplied. */
static lm_status real_blocks(const lm_fft_plan *plan, int kind, walk w) {
  int64_t h = plan->n;
  w.plan = plan;
  w.passes = &plan->whole;
  w.kind = kind;
  w.swap_in = w.swap_out = kind == HALF_TO_REAL;
  w.out_entry = 1;
  w.out_line = kind == REAL_TO_HALF ? h + 1 : h;
  w.out_batch = w.lines * w.out_line;
  w.streams = lm_stream_pays(2 * lm_dtype_size(plan->dtype) * (size_t)(w.out_batch * (w.batches ? w.batches : 1)));
  return run_blocks(&w);
}

/* The first n / 2 + 1 entries of a line of odd n. */
static void half_line(lm_dtype dtype, int64_t n, double inner, const void *z, void *x) {
  memcpy(x, z, 2 * lm_dtype_size(dtype) * (size_t)(n / 2 + 1));
  for (int64_t i = 2; i < n + 1; i++) {
    if (dtype == LM_F64)
      ((double *)x)[i] *= inner;
    else
      ((float *)x)[i] *= (float)inner;
  }
}

/* A real line of even n is one of n / 2 pairs; one of odd n becomes one of n pairs. */
lm_status lm_cpu_fft_r2c(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_fft_r2c_args *a = args;
  lm_fft_plan *plan = NULL;
  lm_tensor *room = NULL;
  lm_dtype dtype = (lm_dtype)a->x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->x->size[a->x->ndim - 1], lines = a->x->numel / n, step = n / 2 + 1;
  bool even = n % 2 == 0;
  TRY(lm_fft_plan_of(even ? n / 2 : n, dtype, even, &plan));
  if (even && in_blocks(plan, lines)) {
    status = real_blocks(plan, REAL_TO_HALF,
                         (walk){.lines = lines,
                                .in = a->x->data,
                                .in_entry = 1,
                                .in_line = n,
                                .out = out[0]->data,
                                .scale = a->scale,
                                .inner = a->inner});
    goto done;
  }
  if (even) {
    TRY(lm_fft_lines(plan, lines, a->x->data, n / 2, out[0]->data, step, false, a->scale));
  } else {
    TRY(scratch(2 * item * (size_t)(n * lines), &room));
    memset(room->data, 0, 2 * item * (size_t)(n * lines));
    for (int64_t i = 0; i < n * lines; i++)
      memcpy(room->data + 2 * item * (size_t)i, a->x->data + item * (size_t)i, item);
    TRY(lm_fft_lines(plan, lines, room->data, n, room->data, n, false, a->scale));
  }
  int threads = lm_cpu_share((double)lines * (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < lines; i++) {
    char *line = out[0]->data + 2 * item * (size_t)(i * step);
    if (even)
      lm_fft_loops_of(dtype)->part(n, plan->halves, a->inner, line);
    else
      half_line(dtype, n, a->inner, room->data + 2 * item * (size_t)(i * n), line);
  }
done:
  lm_release(room);
  lm_fft_plan_done(plan);
  return status;
}

/* Frames of the lines of x [b, n], each times the window: straight into blocks, or by way of memory. */
lm_status lm_cpu_stft_lines(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_stft_lines_args *a = args;
  lm_fft_plan *plan = NULL;
  lm_tensor *frames = NULL;
  lm_dtype dtype = (lm_dtype)a->x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->window->numel, length = a->x->size[1], batches = a->x->size[0], lines = out[0]->size[1];
  TRY(lm_fft_plan_of(n % 2 ? n : n / 2, dtype, n % 2 == 0, &plan));
  if (n % 2 == 0 && in_blocks(plan, lines)) {
    status = real_blocks(plan, REAL_TO_HALF,
                         (walk){.lines = lines,
                                .batches = batches,
                                .in = a->x->data,
                                .in_entry = 1,
                                .in_line = a->hop,
                                .in_batch = length,
                                .out = out[0]->data,
                                .scale = a->scale,
                                .inner = a->inner,
                                .window = a->window->data});
    goto done;
  }
  TRY(lm_tensor_empty(dtype, a->x->device, 3, (int64_t[]){batches, lines, n}, LM_CONTIGUOUS, &frames));
  memset(frames->data, 0, lm_nbytes(frames));
  for (int64_t i = 0; i < batches * lines; i++)
    lm_fft_loops_of(dtype)->add_product(n, a->x->data + item * (size_t)(i / lines * length + i % lines * a->hop),
                                        a->window->data, frames->data + item * (size_t)(i * n));
  lm_fft_r2c_args whole = {.x = frames, .scale = a->scale, .inner = a->inner};
  status = lm_cpu_fft_r2c(&whole, out);
done:
  lm_release(frames);
  lm_fft_plan_done(plan);
  return status;
}

/* Each thread has stretches of `hop` samples of the result. */
lm_status lm_cpu_overlap_add(const void *args, lm_tensor *const *out) {
  const lm_overlap_add_args *a = args;
  lm_dtype dtype = (lm_dtype)a->frames->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->window->numel, count = a->frames->size[1], length = a->length, hop = a->hop;
  int64_t each = (length + hop - 1) / hop, pieces = each * a->frames->size[0];
  int threads = lm_cpu_share((double)a->frames->numel / 2);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t b = p / each, i = p % each, last = i < count ? i : count - 1;
    int64_t samples = length - i * hop < hop ? length - i * hop : hop;
    char *to = out[0]->data + item * (size_t)(b * length + i * hop);
    memset(to, 0, item * (size_t)samples);
    for (int64_t f = i > n / hop ? i - n / hop : 0; f <= last; f++) {
      int64_t at = (i - f) * hop, some = n - at < samples ? n - at : samples;
      if (some <= 0) continue;
      lm_fft_loops_of(dtype)->add_product(some, a->frames->data + item * (size_t)((b * count + f) * n + at),
                                          a->window->data + item * (size_t)at, to);
    }
  }
  return LM_OK;
}

/* The whole line of odd n from the first n / 2 + 1 entries: the rest are the conjugates. */
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

lm_status lm_cpu_fft_c2r(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_fft_c2r_args *a = args;
  const lm_tensor *x = a->x;
  lm_fft_plan *plan = NULL;
  lm_tensor *room = NULL, *dense = NULL;
  lm_dtype dtype = (lm_dtype)x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = a->n, step = n / 2 + 1, lines = x->numel / (2 * step);
  bool even = n % 2 == 0;
  char *z = out[0]->data;
  TRY(lm_fft_plan_of(even ? n / 2 : n, dtype, even, &plan));
  if (even && in_blocks(plan, lines)) {
    walk w = {.lines = lines, .in = x->data, .in_entry = 1, .in_line = 2 * step};
    if (!lm_is_contiguous(x)) { /* entries side by side of all lines of a batch */
      w.lines = x->size[x->ndim - 3];
      w.batches = lines / w.lines;
      w.in_entry = w.lines;
      w.in_line = 2;
      w.in_batch = 2 * step * w.lines;
    }
    w.out = z;
    w.scale = a->scale;
    w.inner = a->inner;
    status = real_blocks(plan, HALF_TO_REAL, w);
    goto done;
  }
  TRY(lm_row_major(x, &dense));
  if (!even) {
    TRY(scratch(2 * item * (size_t)(n * lines), &room));
    z = room->data;
  }
  int threads = lm_cpu_share((double)lines * (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < lines; i++) {
    const char *line = dense->data + 2 * item * (size_t)(i * step);
    if (even)
      lm_fft_loops_of(dtype)->join(n, plan->halves, a->inner, line, z + item * (size_t)(i * n));
    else
      whole_line(dtype, n, a->inner, line, z + 2 * item * (size_t)(i * n));
  }
  TRY(lm_fft_lines(plan, lines, z, even ? n / 2 : n, z, even ? n / 2 : n, true, a->scale));
  for (int64_t i = 0; i < n * lines && !even; i++)
    memcpy(out[0]->data + item * (size_t)i, z + 2 * item * (size_t)i, item);
done:
  lm_release(dense);
  lm_release(room);
  lm_fft_plan_done(plan);
  return status;
}
