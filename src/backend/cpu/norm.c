/* Computes batch, group, layer and RMS norm and their gradients: splits the work among threads, and does the arithmetic
 * of each channel. The loops over elements are in isa/norm.c.
 *
 * Sizes alone set the parts, which are joined in order, so results do not depend on the number of threads. */
#include "backend/cpu/isa/norm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/scalar_access.h"
#include "op_args_normalization.h"

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

/* Moves the output behind the `part` elements that were made. */
static void advance_output(output *o, int64_t part) {
  if (o->w.streams) {
    lm_nontemporal_write(&o->w, o->tile, (size_t)part * o->width);
  } else {
    o->w.to += (size_t)part * o->width;
  }
}

static int64_t norm_parts(int64_t rows, int64_t c) {
  int64_t parts = rows * c / PART;
  parts = parts > MAX_PARTS ? MAX_PARTS : parts;
  parts = parts > rows ? rows : parts;
  return parts < 1 ? 1 : parts;
}

static lm_dtype acc_dtype(lm_dtype dtype) { return dtype == LM_F64 ? LM_F64 : LM_F32; }

/* Returns n contiguous values of t in the compute type: t's own memory, or `converted`; n times `fill` if t is NULL. */
static const void *to_compute_type(const lm_tensor *t, int64_t n, double fill, lm_dtype acc, void *converted) {
  if (t && t->dtype == acc) return t->data;
  for (int64_t i = 0; i < n; i++) lm_scalar_put(acc, converted, i, t ? lm_scalar_load(t, i) : fill);
  return converted;
}

/* A channel's affine map, (x - mean) * scale + shift. The arrays are in the compute type. */
typedef struct affine {
  void *mean, *scale, *shift;
  lm_dtype acc;
} affine;

/* Sets channel i of `a` to (x - mean) * invstd * weight + bias, where weight and bias, which may be NULL, are of
 * channel c. The shift makes up for the mean's rounding, which matters where the mean is large beside the deviation. */
static void set_affine(const affine *a, int64_t i, double mean, double invstd, const lm_tensor *weight,
                       const lm_tensor *bias, int64_t c) {
  lm_scalar_put(a->acc, a->mean, i, mean);
  lm_scalar_put(a->acc, a->scale, i, weight ? invstd * lm_scalar_load(weight, c) : invstd);
  const double lost = mean - lm_real_at(a->acc, a->mean, i);
  lm_scalar_put(a->acc, a->shift, i, (bias ? lm_scalar_load(bias, c) : 0) - lost * lm_real_at(a->acc, a->scale, i));
}

/* Returns `in`, advanced by `elements` of `width` bytes. */
static lm_norm_back back_at(const lm_norm_back *in, int64_t elements, size_t width) {
  const size_t at = (size_t)elements * width;
  lm_norm_back there = *in;
  there.x = (const char *)in->x + at;
  if (in->g) there.g = (const char *)in->g + at;
  if (in->y) there.y = (const char *)in->y + at;
  if (in->masked) there.masked = (char *)in->masked + at;
  return there;
}

/* Two statistics of each channel: without `by`, its mean and its sum of squared distances from that; of a gradient,
 * the sums of g and of g * (x - mean). */
typedef struct statistics_job {
  const lm_norm_loops_of *loops;
  const shape *s;
  size_t width;
  lm_norm_back in;
  const affine *by;
  double *first, *second, *scratch; /* scratch: STATISTICS * parts * c */
  int64_t parts;
} statistics_job;

/* The doubles of a channel that a part needs: two statistics, and working memory of rows_moments or rows_sums. */
enum { STATISTICS = 5 };

static void channel_statistics(void *ctx, int64_t first, int64_t last) {
  const statistics_job *j = ctx;
  const shape *s = j->s;
  for (int64_t c = first; c < last; c++) {
    double a = 0, b = 0;
    for (int64_t n = 0; n < s->images; n++) {
      const lm_norm_back plane = back_at(&j->in, (n * s->c + c) * s->run, j->width);
      double a_n, b_n;
      if (j->by) {
        const affine *by = j->by;
        j->loops->run_sums(&plane, s->run, lm_real_at(by->acc, by->mean, c), lm_real_at(by->acc, by->scale, c),
                           lm_real_at(by->acc, by->shift, c), &a_n, &b_n);
        a += a_n;
        b += b_n;
      } else {
        j->loops->run_moments(plane.x, s->run, &a_n, &b_n);
        double delta = a_n - a;
        a += delta / (double)(n + 1);
        b += b_n + delta * delta * (double)s->run * (double)n / (double)(n + 1);
      }
    }
    j->first[c] = a, j->second[c] = b;
  }
}

static void part_statistics(void *ctx, int64_t first, int64_t last) {
  const statistics_job *j = ctx;
  const shape *s = j->s;
  for (int64_t p = first; p < last; p++) {
    int64_t from = s->count * p / j->parts, rows = s->count * (p + 1) / j->parts - from;
    const lm_norm_back part = back_at(&j->in, from * s->c, j->width);
    double *a = j->scratch + p * STATISTICS * s->c, *b = a + s->c;
    if (j->by)
      j->loops->rows_sums(&part, rows, s->c, j->by->mean, j->by->scale, j->by->shift, a, b, b + s->c);
    else
      j->loops->rows_moments(part.x, rows, s->c, a, b, b + s->c);
  }
}

/* Computes j's statistics; interleaved channels in parts, which are joined in order. */
static void compute_statistics(statistics_job *j) {
  const shape *s = j->s;
  const double work = (j->by ? 0.5 : 0.25) * (double)(s->c * s->count);
  if (!s->interleaved) {
    lm_parallel(s->c, work, 0, channel_statistics, j);
    return;
  }
  j->parts = norm_parts(s->count, s->c);
  lm_parallel(j->parts, work, 0, part_statistics, j);
  memset(j->first, 0, (size_t)s->c * sizeof(double));
  memset(j->second, 0, (size_t)s->c * sizeof(double));
  for (int64_t p = 0; p < j->parts; p++) {
    int64_t from = s->count * p / j->parts, to = s->count * (p + 1) / j->parts;
    const double portion = (double)(to - from) / (double)to, weight = (double)from * portion;
    const double *a = j->scratch + p * STATISTICS * s->c, *b = a + s->c;
    for (int64_t c = 0; c < s->c && j->by; c++) j->first[c] += a[c], j->second[c] += b[c];
    for (int64_t c = 0; c < s->c && !j->by; c++) {
      double delta = a[c] - j->first[c];
      j->first[c] += delta * portion;
      j->second[c] += b[c] + delta * delta * weight;
    }
  }
}

static void compute_moments(const lm_norm_loops_of *loops, const lm_tensor *x, const shape *s, double *mean, double *m2,
                            double *scratch) {
  compute_statistics(&(statistics_job){.loops = loops,
                                       .s = s,
                                       .width = lm_dtype_size(x->dtype),
                                       .in = {.x = x->data},
                                       .first = mean,
                                       .second = m2,
                                       .scratch = scratch});
}

/* An elementwise computation, channel by channel: y = (x - mean) * scale + shift, with relu clamped, plus any addend,
 * to [0, max]; or, with b and k, y = g * scale + (x - mean) * b + k, where with relu g counts as 0 unless (x - mean) *
 * scale + shift is above 0 and below max. */
typedef struct batch_job {
  const lm_norm_loops_of *loops;
  const char *x, *beside; /* beside: the addend or NULL, or g */
  char *y;
  lm_dtype dtype;
  const shape *s;
  const affine *by;
  const void *b, *k; /* values of the compute type */
  bool relu;
  double max; /* upper bound; NaN: none */
} batch_job;

static void compute_rows(const batch_job *j, size_t at, void *to, int64_t rows) {
  const affine *by = j->by;
  const char *beside = j->beside ? j->beside + at : NULL;
  if (j->b)
    j->loops->rows_back(beside, j->x + at, to, rows, j->s->c, by->mean, by->scale, j->b, j->k,
                        j->relu ? by->shift : NULL, j->max);
  else
    j->loops->rows_apply(j->x + at, beside, to, rows, j->s->c, by->mean, by->scale, by->shift, j->relu, j->max);
}

static void compute_run(const batch_job *j, int64_t c, size_t at, void *to, int64_t n) {
  const affine *by = j->by;
  const lm_dtype acc = by->acc;
  const char *beside = j->beside ? j->beside + at : NULL;
  const double mean = lm_real_at(acc, by->mean, c), scale = lm_real_at(acc, by->scale, c),
               shift = lm_real_at(acc, by->shift, c);
  if (j->b)
    j->loops->run_back(beside, j->x + at, to, n, mean, scale, lm_real_at(acc, j->b, c), lm_real_at(acc, j->k, c),
                       j->relu ? &shift : NULL, j->max);
  else
    j->loops->run_apply(j->x + at, beside, to, n, mean, scale, shift, j->relu, j->max);
}

static void compute_units(void *ctx, int64_t from, int64_t to) {
  const batch_job *j = ctx;
  const shape *s = j->s;
  int64_t unit = s->interleaved ? s->c : s->run, part;
  size_t width = lm_dtype_size(j->dtype), at = (size_t)(from * unit) * width;
  LM_LARGE(output, o, 1);
  open_output(o, j->y + at, j->dtype, s->interleaved ? s->c : 1, (size_t)(s->c * s->count) * width,
              j->y != j->x && j->y != j->beside);
  for (int64_t u = from; u < to && s->interleaved; u += part / s->c, at += (size_t)part * width) {
    void *next = scratch_in(o, (to - u) * s->c, &part);
    compute_rows(j, at, next, part / s->c);
    advance_output(o, part);
  }
  for (int64_t u = from; u < to && !s->interleaved; u++) {
    for (int64_t done = 0; done < s->run; done += part, at += (size_t)part * width) {
      void *next = scratch_in(o, s->run - done, &part);
      compute_run(j, u % s->c, at, next, part);
      advance_output(o, part);
    }
  }
  lm_nontemporal_close(&o->w);
}

static void run_batch(const batch_job *job) {
  const shape *s = job->s;
  const double work = (job->b ? 0.5 : 0.25) * (double)(s->c * s->count);
  lm_parallel(s->interleaved ? s->count : s->images * s->c, work, 0, compute_units, (void *)job);
}

/* Returns max, or NaN for infinity: no number is at or above NaN, but one may be at infinity. */
static double bound_of(double max) { return max < INFINITY ? max : NAN; }

static void update_running(lm_tensor *running, int64_t c, double momentum, double value) {
  if (!running) return;
  int64_t at = c * running->stride[0];
  lm_scalar_store(running, at, (1 - momentum) * lm_scalar_load(running, at) + momentum * value);
}

lm_status lm_cpu_batch_normalize(const lm_batch_normalize_args *a, lm_tensor *const *out) {
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  shape s = shape_of(a->x);
  if (s.c == 0) return LM_OK;
  LM_WORKSPACE(double, mean, (5 + STATISTICS * norm_parts(s.count, s.c)) * s.c);
  double *m2 = mean + s.c, *center = m2 + s.c, *scale = center + s.c, *shift = scale + s.c;
  const affine by = {center, scale, shift, acc};
  if (a->training) compute_moments(loops, a->x, &s, mean, m2, shift + s.c);
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
    set_affine(&by, c, mu, invstd, a->weight, a->bias, c);
  }
  run_batch(&(batch_job){.loops = loops,
                         .x = a->x->data,
                         .beside = a->addend ? a->addend->data : NULL,
                         .y = out[0]->data,
                         .dtype = dtype,
                         .s = &s,
                         .by = &by,
                         .relu = a->relu,
                         .max = bound_of(a->max)});
  return LM_OK;
}

/* Computes, with h = (x - mean) * invstd over m values, dx = weight * invstd * (g - mean(g) - h * mean(g * h)) when
 * mean and invstd come from the batch (Ioffe, Szegedy, 2015), else weight * invstd * g. */
lm_status lm_cpu_batch_normalize_backward(const lm_batch_normalize_backward_args *a, lm_tensor *const *out) {
  const bool saved = a->training || a->relu;
  const double max = bound_of(a->max);
  const lm_tensor *mean = saved ? a->save_mean : a->running_mean;
  const lm_tensor *spread = saved ? a->save_invstd : a->running_var; /* inverse deviation, or variance */
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  shape s = shape_of(a->x);
  if (s.c == 0) return LM_OK;
  LM_WORKSPACE(double, invstd, (8 + STATISTICS * norm_parts(s.count, s.c)) * s.c);
  double *sum_g = invstd + s.c, *sum_gx = sum_g + s.c, *center = sum_gx + s.c, *scale = center + s.c;
  double *shift = scale + s.c, *b = shift + s.c, *k = b + s.c;
  for (int64_t c = 0; c < s.c; c++) {
    double value = lm_scalar_load(spread, c * spread->stride[0]);
    invstd[c] = saved ? value : 1 / sqrt(value + a->eps);
    lm_scalar_put(acc, center, c, lm_scalar_load(mean, c * mean->stride[0]));
    lm_scalar_put(acc, scale, c, a->weight ? invstd[c] * lm_scalar_load(a->weight, c) : invstd[c]);
    lm_scalar_put(acc, shift, c, a->bias ? lm_scalar_load(a->bias, c) : 0);
  }
  const affine by = {center, scale, shift, acc};
  /* The masked gradient is stored if it is a result, or if dx depends on nothing else. */
  char *masked = !a->relu ? NULL : a->y ? out[3]->data : a->training ? NULL : out[0]->data;
  compute_statistics(
      &(statistics_job){.loops = loops,
                        .s = &s,
                        .width = lm_dtype_size(dtype),
                        .in = {a->grad->data, a->x->data, a->relu, max, a->y ? a->y->data : NULL, masked},
                        .by = &by,
                        .first = sum_g,
                        .second = sum_gx,
                        .scratch = k + s.c});
  const char *g = masked ? masked : a->grad->data;
  for (int64_t c = 0; c < s.c; c++) {
    double slope = a->weight ? invstd[c] * lm_scalar_load(a->weight, c) : invstd[c];
    lm_scalar_store(out[1], c, sum_gx[c] * invstd[c]);
    lm_scalar_store(out[2], c, sum_g[c]);
    lm_scalar_put(acc, b, c, -slope * invstd[c] * invstd[c] * sum_gx[c] / (double)s.count);
    lm_scalar_put(acc, k, c, -slope * sum_g[c] / (double)s.count);
  }
  if (a->training) {
    run_batch(&(batch_job){loops, a->x->data, g, out[0]->data, dtype, &s, &by, b, k, a->relu && !masked, max});
  } else { /* dx = g * scale */
    memset(center, 0, (size_t)s.c * sizeof *center);
    memset(shift, 0, (size_t)s.c * sizeof *shift);
    run_batch(&(batch_job){.loops = loops, .x = g, .y = out[0]->data, .dtype = dtype, .s = &s, .by = &by});
  }
  return LM_OK;
}

/* ---- groups of channels: statistics of planes of a group each; the rest, planes of a channel each */

/* Returns the shape of a contiguous x [N, C, ...] as one image of n planes. */
static shape planes_of(const lm_tensor *x, int64_t n) {
  return (shape){.c = n, .count = x->numel / n, .images = 1, .run = x->numel / n};
}

lm_status lm_cpu_grouped_norm(const lm_grouped_norm_args *a, lm_tensor *const *out) {
  lm_dtype dtype = a->x->dtype;
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  int64_t channels = a->x->size[1], n = a->x->size[0] * a->num_groups, each = channels / a->num_groups;
  shape groups = planes_of(a->x, n), planes = planes_of(a->x, n * each);
  LM_WORKSPACE(double, mean, 2 * n + 3 * n * each);
  double *m2 = mean + n, *center = m2 + n, *scale = center + n * each;
  const affine by = {center, scale, scale + n * each, acc_dtype(dtype)};
  compute_moments(loops, a->x, &groups, mean, m2, NULL);
  for (int64_t g = 0; g < n; g++) {
    double invstd = 1 / sqrt(m2[g] / (double)groups.count + a->eps);
    lm_scalar_store(out[1], g, mean[g]), lm_scalar_store(out[2], g, invstd);
    for (int64_t p = g * each; p < (g + 1) * each; p++)
      set_affine(&by, p, mean[g], invstd, a->weight, a->bias, p % channels);
  }
  run_batch(&(batch_job){.loops = loops, .x = a->x->data, .y = out[0]->data, .dtype = dtype, .s = &planes, .by = &by});
  return LM_OK;
}

/* Computes, with u = g * weight and h = (x - mean) * invstd over the m values of a group, dx = invstd * (u - mean(u) -
 * h * mean(u * h)). */
lm_status lm_cpu_grouped_norm_backward(const lm_grouped_norm_backward_args *a, lm_tensor *const *out) {
  lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[dtype];
  int64_t channels = a->x->size[1], n = a->x->size[0] * a->num_groups, each = channels / a->num_groups;
  int64_t column = n * each;
  shape planes = planes_of(a->x, column);
  LM_WORKSPACE(double, sum_g, 7 * column + 2 * channels);
  double *sum_gx = sum_g + column, *center = sum_gx + column, *scale = center + column, *shift = scale + column;
  double *b = shift + column, *k = b + column, *dweight = k + column, *dbias = dweight + channels;
  for (int64_t p = 0; p < column; p++) {
    lm_scalar_put(acc, center, p, lm_scalar_load(a->save_mean, p / each));
    double weight = a->weight ? lm_scalar_load(a->weight, p % channels) : 1;
    lm_scalar_put(acc, scale, p, lm_scalar_load(a->save_invstd, p / each) * weight);
    lm_scalar_put(acc, shift, p, 0);
  }
  const affine by = {center, scale, shift, acc};
  compute_statistics(&(statistics_job){.loops = loops,
                                       .s = &planes,
                                       .width = lm_dtype_size(dtype),
                                       .in = {.g = a->grad->data, .x = a->x->data},
                                       .by = &by,
                                       .first = sum_g,
                                       .second = sum_gx});
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
      lm_scalar_put(acc, b, p, -invstd * invstd * sum_uh / m);
      lm_scalar_put(acc, k, p, -invstd * sum_u / m);
    }
  }
  run_batch(&(batch_job){loops, a->x->data, a->grad->data, out[0]->data, dtype, &planes, &by, b, k, false, 0});
  for (int64_t c = 0; c < channels; c++) lm_scalar_store(out[1], c, dweight[c]), lm_scalar_store(out[2], c, dbias[c]);
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
  const char *weight, *bias, *mean, *rstd; /* values of the compute type */
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
    void *next = scratch_in(o, (to - r) * j->d, &part);
    if (a->centered) {
      j->loops->layer(x, next, part / j->d, j->d, j->weight, j->bias, a->eps,
                      j->out[1]->data + (size_t)r * j->acc_width, rstd);
    } else {
      j->loops->rms(x, next, part / j->d, j->d, j->weight, a->eps, rstd);
    }
    advance_output(o, part);
  }
  lm_nontemporal_close(&o->w);
}

lm_status lm_cpu_row_norm(const lm_row_norm_args *a, lm_tensor *const *out) {
  const lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  int64_t d = lm_sizes_product(&a->normalized_shape), rows = out[2]->numel;
  for (int64_t r = 0; d == 0 && r < rows; r++) { /* statistics of no elements */
    if (out[1]) lm_scalar_store(out[1], r, NAN);
    lm_scalar_store(out[2], r, NAN);
  }
  if (d == 0) return LM_OK;
  LM_WORKSPACE(double, converted, 2 * d);
  rows_job job = rows_job_of(a, out, dtype, d, rows);
  job.weight = to_compute_type(a->weight, d, 1, acc, converted);
  if (a->centered) job.bias = to_compute_type(a->bias, d, 0, acc, converted + d);
  return lm_parallel(rows, 0.5 * (double)a->x->numel, 0, normalize_rows, &job);
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
      void *next = scratch_in(o, lm_min(to - r, SUMMED - summed) * d, &some);
      if (j->mean) {
        j->loops->layer_back(g, x, next, some / d, d, j->weight, j->mean + stat, rstd, work);
      } else {
        j->loops->rms_back(g, x, next, some / d, d, j->weight, rstd, work);
      }
      advance_output(o, some);
      summed += some / d;
      if (summed < SUMMED && r + some / d < to) continue;
      all->flush(sums, work, j->sums, j->acc_width == sizeof(double));
      summed = 0;
    }
    lm_nontemporal_close(&o->w);
  }
}

lm_status lm_cpu_row_norm_backward(const lm_row_norm_backward_args *a, lm_tensor *const *out) {
  const lm_dtype dtype = a->x->dtype, acc = acc_dtype(dtype);
  int64_t d = lm_sizes_product(&a->normalized_shape), rows = a->save_rstd->numel;
  if (d == 0) return LM_OK;
  rows_job job = rows_job_of(a, out, dtype, d, rows);
  job.parts = norm_parts(rows, d);
  job.sums = a->save_mean ? 2 * d : d;
  LM_WORKSPACE(double, converted, d + 2 * rows); /* weight, rstd and mean in the compute type */
  LM_WORKSPACE(double, part, 2 * job.parts * job.sums);
  job.part = part;
  job.weight = to_compute_type(a->weight, d, 1, acc, converted);
  job.rstd = to_compute_type(a->save_rstd, rows, 0, acc, converted + d);
  if (a->save_mean) job.mean = to_compute_type(a->save_mean, rows, 0, acc, converted + d + rows);
  lm_parallel(job.parts, (double)a->x->numel, 0, back_parts, &job);
  for (int64_t p = 1; p < job.parts; p++)
    for (int64_t i = 0; i < job.sums; i++) part[i] += part[p * 2 * job.sums + i];
  for (int64_t i = 0; i < d; i++) {
    lm_scalar_store(out[1], i, part[i]);
    if (a->save_mean) lm_scalar_store(out[2], i, part[d + i]);
  }
  return LM_OK;
}
