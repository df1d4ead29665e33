/* Batch norm and layer norm: how the work is cut up, and the arithmetic once a channel. The loops over
 * elements are isa/norm.c.
 *
 * Rows are cut in parts by their number alone and parts are joined in order, so results do not depend
 * on the number of threads. */
#include "backend/cpu/isa/norm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/number.h"
#include "device/alloc.h"

/* x [N, C, ...] as memory: rows of c channels (channels-last, or nothing after C), or planes of one
 * channel each, `run` elements long. */
typedef struct shape {
  int64_t c, count; /* count: elements a channel */
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

enum { MAX_PARTS = 32, PART = 16384 /* elements worth a part of their own */ };

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

/* n contiguous values of t (`fill` where there is no t) in the compute type: t's own, or in `room`. */
static const void *in_acc(const lm_tensor *t, int64_t n, double fill, lm_dtype acc, void *room) {
  if (t && t->dtype == (int8_t)acc) return t->data;
  for (int64_t i = 0; i < n; i++) put_acc(room, acc, i, t ? lm_number_get(t, i) : fill);
  return room;
}

/* Mean of each channel and the sum of squared distances from it.
 * scratch: parts * c * 5 doubles. */
static void batch_moments(const lm_norm_loops_of *loops, const lm_tensor *x, const shape *s, double *mean, double *m2,
                          double *scratch) {
  size_t width = lm_dtype_size(x->dtype);
  if (!s->interleaved) {
#pragma omp parallel for num_threads(lm_cpu_share(0.25 * (double)x->numel))
    for (int64_t c = 0; c < s->c; c++) {
      mean[c] = m2[c] = 0;
      for (int64_t n = 0; n < s->images; n++) {
        double mean_n, m2_n;
        loops->run_moments(x->data + (size_t)((n * s->c + c) * s->run) * width, s->run, &mean_n, &m2_n);
        double delta = mean_n - mean[c];
        mean[c] += delta / (double)(n + 1);
        m2[c] += m2_n + delta * delta * (double)s->run * (double)n / (double)(n + 1);
      }
    }
    return;
  }
  int64_t parts = parts_of(s->count, s->c);
#pragma omp parallel for num_threads(lm_cpu_share(0.25 * (double)x->numel))
  for (int64_t p = 0; p < parts; p++) {
    int64_t from = s->count * p / parts, to = s->count * (p + 1) / parts;
    double *mine = scratch + p * 5 * s->c;
    loops->rows_moments(x->data + (size_t)(from * s->c) * width, to - from, s->c, mine, mine + s->c, mine + 2 * s->c);
  }
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

/* y = (x - mean) * scale + shift a channel; the arrays are in the compute type. */
static void batch_apply(const lm_norm_loops_of *loops, const lm_tensor *x, lm_tensor *y, const shape *s,
                        const void *mean, const void *scale, const void *shift, lm_dtype acc) {
  size_t width = lm_dtype_size(x->dtype);
  int64_t units = s->interleaved ? s->count : s->images * s->c;
#pragma omp parallel num_threads(lm_cpu_share(0.25 * (double)x->numel))
  {
    int64_t n = omp_get_num_threads(), me = omp_get_thread_num(), from = units * me / n, to = units * (me + 1) / n;
    if (s->interleaved) {
      size_t at = (size_t)(from * s->c) * width;
      loops->rows_apply(x->data + at, y->data + at, to - from, s->c, mean, scale, shift);
    } else {
      for (int64_t u = from; u < to; u++) {
        int64_t c = u % s->c;
        size_t at = (size_t)(u * s->run) * width;
        loops->run_apply(x->data + at, y->data + at, s->run, get_acc(mean, acc, c), get_acc(scale, acc, c),
                         get_acc(shift, acc, c));
      }
    }
  }
}

static void update_running(lm_tensor *running, int64_t c, double momentum, double value) {
  if (!running) return;
  int64_t at = c * running->stride[0];
  lm_number_put(running, at, (1 - momentum) * lm_number_get(running, at) + momentum * value);
}

lm_status lm_cpu_batch_norm(const void *args, lm_tensor *const *out) {
  const lm_batch_norm_args *a = args;
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[a->x->dtype];
  shape s = shape_of(a->x);
  lm_dtype acc = acc_dtype(a->x->dtype);
  if (s.c == 0) return LM_OK;

  /* mean, m2; the moments' parts; mean, scale, shift in the compute type */
  size_t bytes = (size_t)(2 + 5 * parts_of(s.count, s.c) + 3) * (size_t)s.c * sizeof(double);
  void *scratch;
  lm_status status = lm_device_alloc(a->x->device, bytes, &scratch);
  if (status != LM_OK) return status;
  double *mean = scratch, *m2 = mean + s.c;
  double *center = m2 + s.c, *scale = center + s.c, *shift = scale + s.c, *parts = shift + s.c;

  if (a->training) batch_moments(loops, a->x, &s, mean, m2, parts);
  for (int64_t c = 0; c < s.c; c++) {
    double mu, invstd;
    if (a->training) {
      mu = mean[c];
      invstd = 1 / sqrt(m2[c] / (double)s.count + a->eps);
      lm_number_put(out[1], c, mu);
      lm_number_put(out[2], c, invstd);
      if (s.count > 0) {
        update_running(a->running_mean, c, a->momentum, mu);
        update_running(a->running_var, c, a->momentum, m2[c] / (double)(s.count - 1));
      }
    } else {
      mu = lm_number_get(a->running_mean, c * a->running_mean->stride[0]);
      invstd = 1 / sqrt(lm_number_get(a->running_var, c * a->running_var->stride[0]) + a->eps);
    }
    put_acc(center, acc, c, mu);
    put_acc(scale, acc, c, a->weight ? invstd * lm_number_get(a->weight, c) : invstd);
    /* What rounding the mean loses is made up for here; it shows where the mean is large beside the deviation. */
    double lost = mu - get_acc(center, acc, c);
    put_acc(shift, acc, c, (a->bias ? lm_number_get(a->bias, c) : 0) - lost * get_acc(scale, acc, c));
  }
  batch_apply(loops, a->x, out[0], &s, center, scale, shift, acc);
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

/* Sums of g and of g * (x - mean) a channel. center: mean in the compute type; scratch: parts * c * 4
 * doubles. */
static void batch_sums(const lm_norm_loops_of *loops, const lm_tensor *g, const lm_tensor *x, const shape *s,
                       const double *mean, const void *center, double *sum_g, double *sum_gx, double *scratch) {
  size_t width = lm_dtype_size(x->dtype);
  memset(sum_g, 0, (size_t)s->c * sizeof *sum_g);
  memset(sum_gx, 0, (size_t)s->c * sizeof *sum_gx);
  if (!s->interleaved) {
#pragma omp parallel for num_threads(lm_cpu_share(0.5 * (double)x->numel))
    for (int64_t c = 0; c < s->c; c++) {
      for (int64_t n = 0; n < s->images; n++) {
        size_t at = (size_t)((n * s->c + c) * s->run) * width;
        double sg, sgx;
        loops->run_sums(g->data + at, x->data + at, s->run, mean[c], &sg, &sgx);
        sum_g[c] += sg;
        sum_gx[c] += sgx;
      }
    }
    return;
  }
  int64_t parts = parts_of(s->count, s->c);
#pragma omp parallel for num_threads(lm_cpu_share(0.5 * (double)x->numel))
  for (int64_t p = 0; p < parts; p++) {
    int64_t from = s->count * p / parts, to = s->count * (p + 1) / parts;
    size_t at = (size_t)(from * s->c) * width;
    double *mine = scratch + p * 4 * s->c;
    loops->rows_sums(g->data + at, x->data + at, to - from, s->c, center, mine, mine + s->c, mine + 2 * s->c);
  }
  for (int64_t p = 0; p < parts; p++) {
    const double *part_g = scratch + p * 4 * s->c, *part_gx = part_g + s->c;
    for (int64_t c = 0; c < s->c; c++) sum_g[c] += part_g[c], sum_gx[c] += part_gx[c];
  }
}

/* dx = g * a + (x - mean) * b + k a channel. */
static void batch_back(const lm_norm_loops_of *loops, const lm_tensor *g, const lm_tensor *x, lm_tensor *dx,
                       const shape *s, const void *mean, const void *a, const void *b, const void *k, lm_dtype acc) {
  size_t width = lm_dtype_size(x->dtype);
  int64_t units = s->interleaved ? s->count : s->images * s->c;
#pragma omp parallel num_threads(lm_cpu_share(0.5 * (double)x->numel))
  {
    int64_t n = omp_get_num_threads(), me = omp_get_thread_num(), from = units * me / n, to = units * (me + 1) / n;
    if (s->interleaved) {
      size_t at = (size_t)(from * s->c) * width;
      loops->rows_back(g->data + at, x->data + at, dx->data + at, to - from, s->c, mean, a, b, k);
    } else {
      for (int64_t u = from; u < to; u++) {
        int64_t c = u % s->c;
        size_t at = (size_t)(u * s->run) * width;
        loops->run_back(g->data + at, x->data + at, dx->data + at, s->run, get_acc(mean, acc, c), get_acc(a, acc, c),
                        get_acc(b, acc, c), get_acc(k, acc, c));
      }
    }
  }
}

/* With h = (x - mean) * invstd over m values: dx = weight * invstd * (g - mean(g) - h * mean(g * h))
 * when mean and invstd come from the batch (Ioffe, Szegedy, 2015), else weight * invstd * g. */
lm_status lm_cpu_batch_norm_backward(const void *args, lm_tensor *const *out) {
  const lm_batch_norm_backward_args *a = args;
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[a->x->dtype];
  shape s = shape_of(a->x);
  lm_dtype acc = acc_dtype(a->x->dtype);
  if (s.c == 0) return LM_OK;
  size_t bytes = (size_t)(4 + 4 * parts_of(s.count, s.c) + 4) * (size_t)s.c * sizeof(double);
  void *scratch;
  lm_status status = lm_device_alloc(a->x->device, bytes, &scratch);
  if (status != LM_OK) return status;
  double *mean = scratch, *invstd = mean + s.c, *sum_g = invstd + s.c, *sum_gx = sum_g + s.c;
  double *center = sum_gx + s.c, *ga = center + s.c, *xb = ga + s.c, *k = xb + s.c, *parts = k + s.c;

  for (int64_t c = 0; c < s.c; c++) {
    mean[c] =
        a->training ? lm_number_get(a->save_mean, c) : lm_number_get(a->running_mean, c * a->running_mean->stride[0]);
    invstd[c] = a->training ? lm_number_get(a->save_invstd, c)
                            : 1 / sqrt(lm_number_get(a->running_var, c * a->running_var->stride[0]) + a->eps);
    put_acc(center, acc, c, mean[c]);
  }
  batch_sums(loops, a->grad, a->x, &s, mean, center, sum_g, sum_gx, parts);
  for (int64_t c = 0; c < s.c; c++) {
    double scale = a->weight ? invstd[c] * lm_number_get(a->weight, c) : invstd[c];
    lm_number_put(out[1], c, sum_gx[c] * invstd[c]);
    lm_number_put(out[2], c, sum_g[c]);
    put_acc(ga, acc, c, scale);
    put_acc(xb, acc, c, -scale * invstd[c] * invstd[c] * sum_gx[c] / (double)s.count);
    put_acc(k, acc, c, -scale * sum_g[c] / (double)s.count);
  }
  if (a->training) {
    batch_back(loops, a->grad, a->x, out[0], &s, center, ga, xb, k, acc);
  } else {
    memset(center, 0, (size_t)s.c * sizeof *center);
    memset(k, 0, (size_t)s.c * sizeof *k);
    batch_apply(loops, a->grad, out[0], &s, center, ga, k, acc);
  }
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

static int64_t product(const lm_ints *shape) {
  int64_t n = 1;
  for (int d = 0; d < shape->n; d++) n *= shape->v[d];
  return n;
}

lm_status lm_cpu_layer_norm(const void *args, lm_tensor *const *out) {
  const lm_layer_norm_args *a = args;
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[a->x->dtype];
  lm_dtype acc = acc_dtype(a->x->dtype);
  int64_t d = product(&a->normalized_shape), rows = out[1]->numel;
  size_t width = lm_dtype_size(a->x->dtype), acc_width = lm_dtype_size(acc);
  if (d == 0) { /* statistics of nothing */
    for (int64_t r = 0; r < rows; r++) lm_number_put(out[1], r, NAN), lm_number_put(out[2], r, NAN);
    return LM_OK;
  }
  size_t bytes = 2 * (size_t)d * sizeof(double);
  void *scratch;
  lm_status status = lm_device_alloc(a->x->device, bytes, &scratch);
  if (status != LM_OK) return status;
  const void *weight = in_acc(a->weight, d, 1, acc, scratch);
  const void *bias = in_acc(a->bias, d, 0, acc, (double *)scratch + d);
#pragma omp parallel num_threads(lm_cpu_share(0.5 * (double)a->x->numel))
  {
    int64_t n = omp_get_num_threads(), me = omp_get_thread_num(), from = rows * me / n, to = rows * (me + 1) / n;
    size_t at = (size_t)(from * d) * width, stat = (size_t)from * acc_width;
    loops->layer(a->x->data + at, out[0]->data + at, to - from, d, weight, bias, a->eps, out[1]->data + stat,
                 out[2]->data + stat);
  }
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}

lm_status lm_cpu_layer_norm_backward(const void *args, lm_tensor *const *out) {
  const lm_layer_norm_backward_args *a = args;
  const lm_norm_loops_of *loops = &LM_ISA_PICK(lm_norm_loops)->of[a->x->dtype];
  lm_dtype acc = acc_dtype(a->x->dtype);
  int64_t d = product(&a->normalized_shape), rows = a->save_mean->numel, parts = parts_of(rows, d);
  size_t width = lm_dtype_size(a->x->dtype), acc_width = lm_dtype_size(acc);
  if (d == 0) return LM_OK;
  /* weight, mean and rstd in the compute type; dweight, dbias and work of each part */
  size_t bytes = ((size_t)d + 2 * (size_t)rows + 4 * (size_t)(parts * d)) * sizeof(double);
  void *scratch;
  lm_status status = lm_device_alloc(a->x->device, bytes, &scratch);
  if (status != LM_OK) return status;
  double *room = scratch, *part = room + d + 2 * rows;
  const char *weight = in_acc(a->weight, d, 1, acc, room), *mean = in_acc(a->save_mean, rows, 0, acc, room + d);
  const char *rstd = in_acc(a->save_rstd, rows, 0, acc, room + d + rows);
#pragma omp parallel for num_threads(lm_cpu_share((double)a->x->numel))
  for (int64_t p = 0; p < parts; p++) {
    int64_t from = rows * p / parts, to = rows * (p + 1) / parts;
    size_t at = (size_t)(from * d) * width, stat = (size_t)from * acc_width;
    double *dweight = part + p * 4 * d;
    memset(dweight, 0, 2 * (size_t)d * sizeof *dweight);
    loops->layer_back(a->grad->data + at, a->x->data + at, out[0]->data + at, to - from, d, weight, mean + stat,
                      rstd + stat, dweight, dweight + d, dweight + 2 * d);
  }
  for (int64_t p = 1; p < parts; p++)
    for (int64_t i = 0; i < 2 * d; i++) part[i] += part[p * 4 * d + i];
  for (int64_t i = 0; i < d; i++) lm_number_put(out[1], i, part[i]), lm_number_put(out[2], i, part[d + i]);
  lm_device_free(a->x->device, scratch, bytes);
  return LM_OK;
}
