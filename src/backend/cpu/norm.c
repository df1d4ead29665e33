/* Computes batch, group, layer and RMS norm and their gradients: splits the work among threads, and does the arithmetic
 * of each channel. The loops over elements are in isa/norm.c.
 *
 * Sizes alone set the parts, which are joined in order, so results do not depend on the number of threads. */
#include "backend/cpu/isa/norm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/scalar_access.h"
#include "device/alloc.h"

/* x [N, C, ...] in memory: rows of c channels (channels-last, or nothing after C), or planes of one channel each, `run`
 * elements long. */
typedef struct shape {
  int64_t c, count; /* count: elements of a channel */
  bool interleaved;
  int64_t images, run;
} shape;

static shape shape_of(const lm_tensor *x) {
  shape s = {.c = x->size[1], .images = x->size[0]};
  s.count = s.c ? x->numel / s.c : 0;
  s.run = s.images ? s.count / s.images : 0;
  s.interleaved = s.run == 1 || (lm_is_channels_last(x) && !lm_is_contiguous(x));
  return s;
}

enum {
  MAX_PARTS = 32,
  PART = 16384, /* elements of a part, at least */
  TILE = 32768, /* bytes of a large result that are computed in the caches before they bypass them, at most */
  NEAR = 8192   /* preferred bytes of a part of the result, beside whose inputs the L1 cache has room */
};

/* A writer of consecutive elements of a result, in chunks of a multiple of `unit` elements. */
typedef struct output {
  lm_nontemporal_writer w;
  int64_t max_chunk; /* elements of a chunk */
  size_t width;
  _Alignas(64) char tile[TILE];
} output;

/* Opens o at `to`. unit: elements made together; whole: the result's bytes; fresh: true if it is no input, too. */
static void open_output(output *o, char *to, lm_dtype dtype, int64_t unit, size_t whole, bool fresh) {
  o->width = lm_dtype_size(dtype);
  int64_t near = NEAR / (int64_t)o->width / unit;
  o->max_chunk = (near > 0 ? near : TILE / (int64_t)o->width >= unit) * unit;
  lm_nontemporal_open(&o->w, to, fresh && o->max_chunk > 0 && lm_use_nontemporal(whole));
}

/* Returns the memory for the next elements of n, and sets `part` to their number. */
static void *scratch_in(output *o, int64_t n, int64_t *part) {
  *part = o->w.streams && o->max_chunk < n ? o->max_chunk : n;
  return o->w.streams ? o->tile : o->w.to;
}

static void made(output *o, int64_t part) {
  if (o->w.streams) {
    lm_nontemporal_write(&o->w, o->tile, (size_t)part * o->width);
  } else {
    o->w.to += (size_t)part * o->width;
  }
}

static int64_t parts_of(int64_t rows, int64_t c) {
  int64_t parts = rows * c / PART;
  parts = parts > MAX_PARTS ? MAX_PARTS : parts;
  parts = parts > rows ? rows : parts;
  return parts < 1 ? 1 : parts;
}

static lm_dtype acc_dtype(lm_dtype dtype) { return dtype == LM_F64 ? LM_F64 : LM_F32; }

static void put_acc(void *array, lm_dtype acc, int64_t i, double v) {
  if (acc == LM_F64) {
    ((double *)array)[i] = v;
  } else {
    ((float *)array)[i] = (float)v;
  }
}

static double get_acc(const void *array, lm_dtype acc, int64_t i) {
  return acc == LM_F64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

/* Returns n contiguous values of t in the compute type: t's own memory, or `converted`; n times `fill` if t is NULL. */
static const void *in_acc(const lm_tensor *t, int64_t n, double fill, lm_dtype acc, void *converted) {
  if (t && t->dtype == acc) return t->data;
  for (int64_t i = 0; i < n; i++) put_acc(converted, acc, i, t ? lm_scalar_load(t, i) : fill);
  return converted;
}

/* Computes each channel's mean and sum of squared distances from it. scratch: parts * c * 5 doubles. */
typedef struct moments_job {
  const lm_norm_loops_of *loops;
  const lm_tensor *x;
  const shape *s;
  double *mean, *m2, *scratch;
  int64_t parts;
} moments_job;

static void channel_moments(void *ctx, int64_t first, int64_t last) {
  const moments_job *j = ctx;
  const shape *s = j->s;
  for (int64_t c = first; c < last; c++) {
    double mean = 0, m2 = 0;
    for (int64_t n = 0; n < s->images; n++) {
      double mean_n, m2_n;
      j->loops->run_moments(j->x->data + (size_t)((n * s->c + c) * s->run) * lm_dtype_size(j->x->dtype), s->run,
                            &mean_n, &m2_n);
      double delta = mean_n - mean;
      mean += delta / (double)(n + 1);
      m2 += m2_n + delta * delta * (double)s->run * (double)n / (double)(n + 1);
    }
    j->mean[c] = mean, j->m2[c] = m2;
  }
}

static void part_moments(void *ctx, int64_t first, int64_t last) {
  const moments_job *j = ctx;
  const shape *s = j->s;
  for (int64_t p = first; p < last; p++) {
    int64_t from = s->count * p / j->parts, to = s->count * (p + 1) / j->parts;
    double *mine = j->scratch + p * 5 * s->c;
    j->loops->rows_moments(j->x->data + (size_t)(from * s->c) * lm_dtype_size(j->x->dtype), to - from, s->c, mine,
                           mine + s->c, mine + 2 * s->c);
  }
}

static void batch_moments(const lm_norm_loops_of *loops, const lm_tensor *x, const shape *s, double *mean, double *m2,
                          double *scratch) {
  int64_t parts = s->interleaved ? parts_of(s->count, s->c) : 0;
  moments_job job = {loops, x, s, mean, m2, scratch, parts};
  double work = 0.25 * (double)x->numel;
  if (!s->interleaved) {
    lm_parallel(s->c, work, 0, channel_moments, &job);
    return;
  }
  lm_parallel(parts, work, 0, part_moments, &job);
  memset(mean, 0, (size_t)s->c * sizeof *mean);
  memset(m2, 0, (size_t)s->c * sizeof *m2);
  for (int64_t p = 0; p < parts; p++) {
    int64_t from = s->count * p / parts, to = s->count * (p + 1) / parts;
    double portion = (double)(to - from) / (double)to, weight = (double)from * portion;
    const double *part_mean = scratch + p * 5 * s->c, *part_m2 = part_mean + s->c;
    for (int64_t c = 0; c < s->c; c++) {
      double delta = part_mean[c] - mean[c];
      mean[c] += delta * portion;
      m2[c] += part_m2[c] + delta * delta * weight;
    }
  }
}

/* A channel's affine map, (x - mean) * scale + shift. The arrays are in the compute type. */
typedef struct affine {
  const void *mean, *scale, *shift;
  lm_dtype acc;
} affine;

/* An elementwise computation, channel by channel. */
typedef struct batch_job {
  const lm_norm_loops_of *loops;
  const char *x, *beside; /* beside: the addend or NULL, or the gradient */
  char *y;
  lm_dtype dtype;
  const shape *s;
  const affine *by;
  const void *b, *k;
  bool relu;
  double max; /* upper bound; NaN: none */
} batch_job;

static void open_batch_output(output *o, const batch_job *j, size_t at, bool fresh) {
  const shape *s = j->s;
  open_output(o, j->y + at, j->dtype, s->interleaved ? s->c : 1, (size_t)(s->c * s->count) * lm_dtype_size(j->dtype),
              fresh);
}

static void apply_units(void *ctx, int64_t from, int64_t to) {
  const batch_job *j = ctx;
  const shape *s = j->s;
  const affine *by = j->by;
  const char *x = j->x, *addend = j->beside;
  int64_t unit = s->interleaved ? s->c : s->run, part;
  size_t width = lm_dtype_size(j->dtype), at = (size_t)(from * unit) * width;
  LM_LARGE(output, o, 1);
  open_batch_output(o, j, at, j->y != x && j->y != addend);
  for (int64_t u = from; u < to && s->interleaved; u += part / s->c, at += (size_t)part * width) {
    void *made_at = scratch_in(o, (to - u) * s->c, &part);
    j->loops->rows_apply(x + at, addend ? addend + at : NULL, made_at, part / s->c, s->c, by->mean, by->scale,
                         by->shift, j->relu, j->max);
    made(o, part);
  }
  for (int64_t u = from; u < to && !s->interleaved; u++) {
    int64_t c = u % s->c;
    for (int64_t done = 0; done < s->run; done += part, at += (size_t)part * width) {
      void *made_at = scratch_in(o, s->run - done, &part);
      j->loops->run_apply(x + at, addend ? addend + at : NULL, made_at, part, get_acc(by->mean, by->acc, c),
                          get_acc(by->scale, by->acc, c), get_acc(by->shift, by->acc, c), j->relu, j->max);
      made(o, part);
    }
  }
  lm_nontemporal_close(&o->w);
}

static void run_batch(lm_parallel_fn *fn, double each_ns, const batch_job *job) {
  const shape *s = job->s;
  lm_parallel(s->interleaved ? s->count : s->images * s->c, each_ns * (double)(s->c * s->count), 0, fn, (void *)job);
}

/* Computes y = (x - mean) * scale + shift for each channel; relu: clamps it, plus any addend, to [0, max]. */
static void batch_apply(const lm_norm_loops_of *loops, const char *x, const char *addend, char *y, lm_dtype dtype,
                        const shape *s, const affine *by, bool relu, double max) {
  const batch_job job = {
      .loops = loops, .x = x, .beside = addend, .y = y, .dtype = dtype, .s = s, .by = by, .relu = relu, .max = max};
  run_batch(apply_units, 0.25, &job);
}

/* Returns max, or NaN for infinity: no number is at or above NaN, but one may be at infinity. */
static double bound_of(double max) { return max < INFINITY ? max : NAN; }

static void update_running(lm_tensor *running, int64_t c, double momentum, double value) {
  if (!running) return;
  int64_t at = c * running->stride[0];
  lm_scalar_store(running, at, (1 - momentum) * lm_scalar_load(running, at) + momentum * value);
}

lm_status lm_cpu_batch_normalize(const void *args, lm_tensor *const *out) {
  const lm_batch_normalize_args *a = args;
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  shape s = shape_of(a->x);
  if (s.c == 0) return LM_OK;

  /* Scratch: mean, m2; center, scale and shift in the compute type; the moments' parts. */
  size_t bytes = (size_t)(2 + 5 * parts_of(s.count, s.c) + 3) * (size_t)s.c * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  double *mean = scratch, *m2 = mean + s.c;
  double *center = m2 + s.c, *scale = center + s.c, *shift = scale + s.c, *parts = shift + s.c;

  if (a->training) batch_moments(loops, a->x, &s, mean, m2, parts);
  if (a->training && a->num_batches_tracked) ++*(int64_t *)a->num_batches_tracked->data;
  for (int64_t c = 0; c < s.c; c++) {
    double mu, invstd;
    if (a->training) {
      mu = mean[c];
      invstd = 1 / sqrt(m2[c] / (double)s.count + a->eps);
      if (s.count > 0) {
        update_running(a->running_mean, c, a->momentum, mu);
        update_running(a->running_var, c, a->momentum, m2[c] / (double)(s.count - 1));
      }
    } else {
      mu = lm_scalar_load(a->running_mean, c * a->running_mean->stride[0]);
      invstd = 1 / sqrt(lm_scalar_load(a->running_var, c * a->running_var->stride[0]) + a->eps);
    }
    if (out[1]) lm_scalar_store(out[1], c, mu), lm_scalar_store(out[2], c, invstd);
    /* Backward recomputes relu's mask from the statistics as stored. */
    if (a->relu) mu = lm_scalar_load(out[1], c), invstd = lm_scalar_load(out[2], c);
    put_acc(center, acc, c, mu);
    put_acc(scale, acc, c, a->weight ? invstd * lm_scalar_load(a->weight, c) : invstd);
    /* The shift makes up for the mean's rounding, which matters where the mean is large beside the deviation. */
    double lost = mu - get_acc(center, acc, c);
    put_acc(shift, acc, c, (a->bias ? lm_scalar_load(a->bias, c) : 0) - lost * get_acc(scale, acc, c));
  }
  const affine by = {center, scale, shift, acc};
  batch_apply(loops, a->x->data, a->addend ? a->addend->data : NULL, out[0]->data, dtype, &s, &by, a->relu,
              bound_of(a->max));
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

/* Returns `in`, advanced by `elements` of `width` bytes. */
static lm_norm_back back_at(const lm_norm_back *in, int64_t elements, size_t width) {
  const size_t at = (size_t)elements * width;
  lm_norm_back there = *in;
  there.g = (const char *)in->g + at;
  there.x = (const char *)in->x + at;
  if (in->y) there.y = (const char *)in->y + at;
  if (in->masked) there.masked = (char *)in->masked + at;
  return there;
}

/* Sums g and g * (x - mean) for each channel. scratch: parts * c * 4 doubles. */
typedef struct sums_job {
  const lm_norm_loops_of *loops;
  const lm_norm_back *in;
  size_t width;
  const shape *s;
  const affine *by;
  double *sum_g, *sum_gx, *scratch;
  int64_t parts;
} sums_job;

static void channel_sums(void *ctx, int64_t first, int64_t last) {
  const sums_job *j = ctx;
  const shape *s = j->s;
  const affine *by = j->by;
  for (int64_t c = first; c < last; c++) {
    double sum_g = 0, sum_gx = 0;
    for (int64_t n = 0; n < s->images; n++) {
      lm_norm_back plane = back_at(j->in, (n * s->c + c) * s->run, j->width);
      double sg, sgx;
      j->loops->run_sums(&plane, s->run, get_acc(by->mean, by->acc, c), get_acc(by->scale, by->acc, c),
                         get_acc(by->shift, by->acc, c), &sg, &sgx);
      sum_g += sg;
      sum_gx += sgx;
    }
    j->sum_g[c] = sum_g, j->sum_gx[c] = sum_gx;
  }
}

static void part_sums(void *ctx, int64_t first, int64_t last) {
  const sums_job *j = ctx;
  const shape *s = j->s;
  for (int64_t p = first; p < last; p++) {
    int64_t from = s->count * p / j->parts, to = s->count * (p + 1) / j->parts;
    lm_norm_back part = back_at(j->in, from * s->c, j->width);
    double *mine = j->scratch + p * 4 * s->c;
    j->loops->rows_sums(&part, to - from, s->c, j->by->mean, j->by->scale, j->by->shift, mine, mine + s->c,
                        mine + 2 * s->c);
  }
}

static void batch_sums(const lm_norm_loops_of *loops, const lm_norm_back *in, lm_dtype dtype, const shape *s,
                       const affine *by, double *sum_g, double *sum_gx, double *scratch) {
  int64_t parts = s->interleaved ? parts_of(s->count, s->c) : 0;
  sums_job job = {loops, in, lm_dtype_size(dtype), s, by, sum_g, sum_gx, scratch, parts};
  double work = 0.5 * (double)(s->c * s->count);
  if (!s->interleaved) {
    lm_parallel(s->c, work, 0, channel_sums, &job);
    return;
  }
  memset(sum_g, 0, (size_t)s->c * sizeof *sum_g);
  memset(sum_gx, 0, (size_t)s->c * sizeof *sum_gx);
  lm_parallel(parts, work, 0, part_sums, &job);
  for (int64_t p = 0; p < parts; p++) {
    const double *part_g = scratch + p * 4 * s->c, *part_gx = part_g + s->c;
    for (int64_t c = 0; c < s->c; c++) sum_g[c] += part_g[c], sum_gx[c] += part_gx[c];
  }
}

static void back_units(void *ctx, int64_t from, int64_t to) {
  const batch_job *j = ctx;
  const shape *s = j->s;
  const affine *by = j->by;
  const char *x = j->x, *g = j->beside;
  int64_t unit = s->interleaved ? s->c : s->run, part;
  size_t width = lm_dtype_size(j->dtype), at = (size_t)(from * unit) * width;
  LM_LARGE(output, o, 1);
  open_batch_output(o, j, at, j->y != g);
  for (int64_t u = from; u < to && s->interleaved; u += part / s->c, at += (size_t)part * width) {
    void *made_at = scratch_in(o, (to - u) * s->c, &part);
    j->loops->rows_back(g + at, x + at, made_at, part / s->c, s->c, by->mean, by->scale, j->b, j->k,
                        j->relu ? by->shift : NULL, j->max);
    made(o, part);
  }
  for (int64_t u = from; u < to && !s->interleaved; u++) {
    int64_t c = u % s->c;
    double shift = get_acc(by->shift, by->acc, c);
    for (int64_t done = 0; done < s->run; done += part, at += (size_t)part * width) {
      void *made_at = scratch_in(o, s->run - done, &part);
      j->loops->run_back(g + at, x + at, made_at, part, get_acc(by->mean, by->acc, c), get_acc(by->scale, by->acc, c),
                         get_acc(j->b, by->acc, c), get_acc(j->k, by->acc, c), j->relu ? &shift : NULL, j->max);
      made(o, part);
    }
  }
  lm_nontemporal_close(&o->w);
}

/* Computes dx = g * scale + (x - mean) * b + k for each channel; relu: g counts as 0 unless (x - mean) * scale + shift
 * is above 0 and below max. */
static void batch_back(const lm_norm_loops_of *loops, const char *g, const char *x, char *dx, lm_dtype dtype,
                       const shape *s, const affine *by, const void *b, const void *k, bool relu, double max) {
  run_batch(back_units, 0.5, &(batch_job){loops, x, g, dx, dtype, s, by, b, k, relu, max});
}

/* Computes, with h = (x - mean) * invstd over m values, dx = weight * invstd * (g - mean(g) - h * mean(g * h)) when
 * mean and invstd come from the batch (Ioffe, Szegedy, 2015), else weight * invstd * g. */
lm_status lm_cpu_batch_normalize_backward(const void *args, lm_tensor *const *out) {
  const lm_batch_normalize_backward_args *a = args;
  const bool saved = a->training || a->relu;
  const double max = bound_of(a->max);
  const lm_tensor *mean = saved ? a->save_mean : a->running_mean;
  const lm_tensor *spread = saved ? a->save_invstd : a->running_var; /* inverse deviation, or variance */
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  shape s = shape_of(a->x);
  if (s.c == 0) return LM_OK;
  size_t bytes = (size_t)(3 + 4 * parts_of(s.count, s.c) + 5) * (size_t)s.c * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  double *invstd = scratch, *sum_g = invstd + s.c, *sum_gx = sum_g + s.c;
  double *center = sum_gx + s.c, *scale = center + s.c, *shift = scale + s.c, *b = shift + s.c, *k = b + s.c;
  double *parts = k + s.c;

  for (int64_t c = 0; c < s.c; c++) {
    double value = lm_scalar_load(spread, c * spread->stride[0]);
    invstd[c] = saved ? value : 1 / sqrt(value + a->eps);
    put_acc(center, acc, c, lm_scalar_load(mean, c * mean->stride[0]));
    put_acc(scale, acc, c, a->weight ? invstd[c] * lm_scalar_load(a->weight, c) : invstd[c]);
    put_acc(shift, acc, c, a->bias ? lm_scalar_load(a->bias, c) : 0);
  }
  const affine by = {center, scale, shift, acc};
  /* The masked gradient is stored if it is a result, or if dx depends on nothing else. */
  char *masked = !a->relu ? NULL : a->y ? out[3]->data : a->training ? NULL : out[0]->data;
  const lm_norm_back in = {a->grad->data, a->x->data, a->relu, max, a->y ? a->y->data : NULL, masked};
  batch_sums(loops, &in, dtype, &s, &by, sum_g, sum_gx, parts);
  const char *g = masked ? masked : a->grad->data;
  for (int64_t c = 0; c < s.c; c++) {
    double slope = a->weight ? invstd[c] * lm_scalar_load(a->weight, c) : invstd[c];
    lm_scalar_store(out[1], c, sum_gx[c] * invstd[c]);
    lm_scalar_store(out[2], c, sum_g[c]);
    put_acc(b, acc, c, -slope * invstd[c] * invstd[c] * sum_gx[c] / (double)s.count);
    put_acc(k, acc, c, -slope * sum_g[c] / (double)s.count);
  }
  if (a->training) {
    batch_back(loops, g, a->x->data, out[0]->data, dtype, &s, &by, b, k, a->relu && !masked, max);
  } else {
    memset(center, 0, (size_t)s.c * sizeof *center);
    memset(shift, 0, (size_t)s.c * sizeof *shift);
    batch_apply(loops, g, NULL, out[0]->data, dtype, &s, &by, false, 0);
  }
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

/* ---- groups of channels: statistics of planes of a group each; the rest, planes of a channel each */

/* Returns the shape of a contiguous x [N, C, ...] as one image of n planes. */
static shape planes_of(const lm_tensor *x, int64_t n) {
  return (shape){.c = n, .count = x->numel / n, .images = 1, .run = x->numel / n};
}

lm_status lm_cpu_grouped_norm(const void *args, lm_tensor *const *out) {
  const lm_grouped_norm_args *a = args;
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  int64_t channels = a->x->size[1], n = a->x->size[0] * a->num_groups, each = channels / a->num_groups;
  shape groups = planes_of(a->x, n), planes = planes_of(a->x, n * each);
  size_t bytes = (size_t)(2 * n + 3 * n * each) * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  double *mean = scratch, *m2 = mean + n, *center = m2 + n, *scale = center + n * each, *shift = scale + n * each;
  batch_moments(loops, a->x, &groups, mean, m2, NULL);
  for (int64_t g = 0; g < n; g++) {
    double invstd = 1 / sqrt(m2[g] / (double)groups.count + a->eps);
    lm_scalar_store(out[1], g, mean[g]), lm_scalar_store(out[2], g, invstd);
    for (int64_t p = g * each; p < (g + 1) * each; p++) {
      put_acc(center, acc, p, mean[g]);
      put_acc(scale, acc, p, a->weight ? invstd * lm_scalar_load(a->weight, p % channels) : invstd);
      double lost = mean[g] - get_acc(center, acc, p); /* lost by rounding the mean */
      put_acc(shift, acc, p, (a->bias ? lm_scalar_load(a->bias, p % channels) : 0) - lost * get_acc(scale, acc, p));
    }
  }
  const affine by = {center, scale, shift, acc};
  batch_apply(loops, a->x->data, NULL, out[0]->data, dtype, &planes, &by, false, 0);
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

/* Computes, with u = g * weight and h = (x - mean) * invstd over the m values of a group, dx = invstd * (u - mean(u) -
 * h * mean(u * h)). */
lm_status lm_cpu_grouped_norm_backward(const void *args, lm_tensor *const *out) {
  const lm_grouped_norm_backward_args *a = args;
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  int64_t channels = a->x->size[1], n = a->x->size[0] * a->num_groups, each = channels / a->num_groups;
  shape planes = planes_of(a->x, n * each);
  size_t column = (size_t)(n * each), bytes = (7 * column + 2 * (size_t)channels) * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  double *sum_g = scratch, *sum_gx = sum_g + column, *center = sum_gx + column, *scale = center + column;
  double *shift = scale + column, *b = shift + column, *k = b + column, *dweight = k + column;
  double *dbias = dweight + channels;
  for (int64_t p = 0; p < n * each; p++) {
    put_acc(center, acc, p, lm_scalar_load(a->save_mean, p / each));
    double weight = a->weight ? lm_scalar_load(a->weight, p % channels) : 1;
    put_acc(scale, acc, p, lm_scalar_load(a->save_invstd, p / each) * weight);
    put_acc(shift, acc, p, 0);
  }
  const affine by = {center, scale, shift, acc};
  const lm_norm_back in = {.g = a->grad->data, .x = a->x->data};
  batch_sums(loops, &in, dtype, &planes, &by, sum_g, sum_gx, NULL);
  memset(dweight, 0, 2 * (size_t)channels * sizeof *dweight);
  for (int64_t g = 0; g < n; g++) {
    double invstd = lm_scalar_load(a->save_invstd, g), sum_u = 0, sum_uh = 0, m = (double)(each * planes.run);
    for (int64_t p = g * each; p < (g + 1) * each; p++) {
      double weight = a->weight ? lm_scalar_load(a->weight, p % channels) : 1;
      sum_u += weight * sum_g[p];
      sum_uh += weight * sum_gx[p] * invstd;
      dweight[p % channels] += sum_gx[p] * invstd;
      dbias[p % channels] += sum_g[p];
    }
    for (int64_t p = g * each; p < (g + 1) * each; p++) {
      put_acc(b, acc, p, -invstd * invstd * sum_uh / m);
      put_acc(k, acc, p, -invstd * sum_u / m);
    }
  }
  batch_back(loops, a->grad->data, a->x->data, out[0]->data, dtype, &planes, &by, b, k, false, 0);
  for (int64_t c = 0; c < channels; c++) lm_scalar_store(out[1], c, dweight[c]), lm_scalar_store(out[2], c, dbias[c]);
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

/* ---- rows of layer norm and, without a mean, of rms norm */

/* A job over rows of d elements each. */
typedef struct rows_job {
  const void *args;
  lm_tensor *const *out;
  const lm_norm_loops_of *loops;
  int64_t d, rows, parts, sums; /* sums: number of a part's sums, d of dweight and d of dbias if it exists */
  size_t width, acc_width;
  const char *weight, *bias, *mean, *rstd; /* in the compute type */
  double *part;                            /* each part's sums, followed by as much working memory */
} rows_job;

static rows_job rows_job_of(const void *args, lm_tensor *const *out, lm_dtype dtype, int64_t d, int64_t rows) {
  return (rows_job){.args = args,
                    .out = out,
                    .loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype],
                    .d = d,
                    .rows = rows,
                    .width = lm_dtype_size(dtype),
                    .acc_width = lm_dtype_size(acc_dtype(dtype))};
}

/* Opens o at row `from`. together: number of rows that are best made at a time. */
static void open_rows_output(output *o, const rows_job *j, int64_t from, int together) {
  int64_t unit = j->d * together * (int64_t)j->width <= TILE ? j->d * together : j->d;
  open_output(o, j->out[0]->data + (size_t)(from * j->d) * j->width, j->out[0]->dtype, unit, lm_nbytes(j->out[0]),
              true);
}

static void normalize_rows(void *ctx, int64_t from, int64_t to) {
  const rows_job *j = ctx;
  const lm_row_norm_args *a = j->args;
  int64_t part;
  LM_LARGE(output, o, 1);
  open_rows_output(o, j, from, 1);
  for (int64_t r = from; r < to; r += part / j->d) {
    const char *x = a->x->data + (size_t)(r * j->d) * j->width;
    char *rstd = j->out[2]->data + (size_t)r * j->acc_width;
    void *made_at = scratch_in(o, (to - r) * j->d, &part);
    if (a->centered) {
      j->loops->layer(x, made_at, part / j->d, j->d, j->weight, j->bias, a->eps,
                      j->out[1]->data + (size_t)r * j->acc_width, rstd);
    } else {
      j->loops->rms(x, made_at, part / j->d, j->d, j->weight, a->eps, rstd);
    }
    made(o, part);
  }
  lm_nontemporal_close(&o->w);
}

lm_status lm_cpu_row_norm(const void *args, lm_tensor *const *out) {
  const lm_row_norm_args *a = args;
  const lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  int64_t d = lm_sizes_product(&a->normalized_shape), rows = out[2]->numel;
  for (int64_t r = 0; d == 0 && r < rows; r++) { /* statistics of no elements */
    if (out[1]) lm_scalar_store(out[1], r, NAN);
    lm_scalar_store(out[2], r, NAN);
  }
  if (d == 0) return LM_OK;
  size_t bytes = 2 * (size_t)d * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  rows_job job = rows_job_of(args, out, dtype, d, rows);
  job.weight = in_acc(a->weight, d, 1, acc, scratch);
  if (a->centered) job.bias = in_acc(a->bias, d, 0, acc, (double *)scratch + d);
  lm_parallel(rows, 0.5 * (double)a->x->numel, 0, normalize_rows, &job);
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

static void back_parts(void *ctx, int64_t first, int64_t last) {
  enum { SUMMED = 64 }; /* rows, few enough that float sums of them are exact to a few ulp */
  const rows_job *j = ctx;
  const lm_row_norm_backward_args *a = j->args;
  const int64_t d = j->d;
  const struct lm_norm_loops *all = LM_ISA_PICK(lm_norm_loops);
  for (int64_t p = first; p < last; p++) {
    int64_t from = j->rows * p / j->parts, to = j->rows * (p + 1) / j->parts, some, summed = 0;
    double *sums = j->part + p * 2 * j->sums, *work = sums + j->sums;
    memset(sums, 0, 2 * (size_t)j->sums * sizeof *sums);
    LM_LARGE(output, o, 1);
    open_rows_output(o, j, from, 2);
    for (int64_t r = from; r < to; r += some / d) {
      size_t at = (size_t)(r * d) * j->width, stat = (size_t)r * j->acc_width;
      const char *g = a->grad->data + at, *x = a->x->data + at, *rstd = j->rstd + stat;
      void *made_at = scratch_in(o, lm_min(to - r, SUMMED - summed) * d, &some);
      if (j->mean) {
        j->loops->layer_back(g, x, made_at, some / d, d, j->weight, j->mean + stat, rstd, work);
      } else {
        j->loops->rms_back(g, x, made_at, some / d, d, j->weight, rstd, work);
      }
      made(o, some);
      summed += some / d;
      if (summed < SUMMED && r + some / d < to) continue;
      all->flush(sums, work, j->sums, j->acc_width == sizeof(double));
      summed = 0;
    }
    lm_nontemporal_close(&o->w);
  }
}

lm_status lm_cpu_row_norm_backward(const void *args, lm_tensor *const *out) {
  const lm_row_norm_backward_args *a = args;
  const lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  int64_t d = lm_sizes_product(&a->normalized_shape), rows = a->save_rstd->numel;
  if (d == 0) return LM_OK;
  rows_job job = rows_job_of(args, out, dtype, d, rows);
  job.parts = parts_of(rows, d);
  job.sums = a->save_mean ? 2 * d : d;
  /* Scratch: weight, rstd and mean in the compute type; the parts. */
  size_t bytes = (size_t)(d + 2 * rows + 2 * job.parts * job.sums) * sizeof(double);
  void *scratch;
  NEED(lm_device_alloc(a->x->device, bytes, &scratch));
  double *converted = scratch, *part = job.part = converted + d + 2 * rows;
  job.weight = in_acc(a->weight, d, 1, acc, converted);
  job.rstd = in_acc(a->save_rstd, rows, 0, acc, converted + d);
  if (a->save_mean) job.mean = in_acc(a->save_mean, rows, 0, acc, converted + d + rows);
  lm_parallel(job.parts, (double)a->x->numel, 0, back_parts, &job);
  for (int64_t p = 1; p < job.parts; p++)
    for (int64_t i = 0; i < job.sums; i++) part[i] += part[p * 2 * job.sums + i];
  for (int64_t i = 0; i < d; i++) {
    lm_scalar_store(out[1], i, part[i]);
    if (a->save_mean) lm_scalar_store(out[2], i, part[d + i]);
  }
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}
