/* Transforms each pixel by itself, or by sums over its image. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/message.h"
#include "image/transform_job.h"

#define LOOPS LM_PIXEL_LOOPS(job->x.dtype)

static double bytes_of(const lm_image_job *job) { return (double)lm_dtype_size(job->x.dtype); }

static double white_of(const lm_image_job *job) { return job->x.dtype == LM_U8 ? 255 : 1; }

lm_status lm_plan_colors(lm_image_job *job) {
  if (job->x.c == 1 || job->x.c == 3) return LM_OK;
  lm_fail_int(job->name, "channels", "1 or 3", job->x.c);
  return LM_E_SHAPE;
}

/* Copies channels one by one; any number of them. */
static lm_status copy_channels(const lm_image_job *job) {
  const double none[2] = {1, 0};
  return lm_image_spans(job, LOOPS->blend, false, none, 0, 0.03 * bytes_of(job));
}

lm_status lm_run_brightness(const lm_image_job *job) {
  double v[2] = {job->v[0], 0};
  return lm_image_spans(job, LOOPS->blend, false, v, 0, 0.2);
}

/* Collects a number of each row or plane. */
typedef struct counting {
  const lm_image_job *job;
  lm_planes x;
  double *out;
} counting;

static void sum_rows(void *ctx, int64_t first, int64_t last) {
  const counting *j = ctx;
  const lm_image_job *job = j->job;
  const lm_planes *x = &j->x;
  for (int64_t row = first; row < last; row++) {
    const void *in[3];
    for (int c = 0; c < x->c; c++) in[c] = lm_row_of(x, row / x->h, c, row % x->h);
    j->out[row] = LOOPS->gray_sum(in, (int)x->c, x->w);
  }
}

/* Sums each row separately, so that threads and strides do not change the result. */
lm_status lm_run_contrast(const lm_image_job *job) {
  const lm_planes *x = &job->x;
  int64_t rows = x->n * x->h;
  LM_FREED double *v = lm_malloc((size_t)(2 * x->n + rows) * sizeof *v);
  double *sums = v + 2 * x->n;
  if (!v) return LM_E_OOM;
  NEED(lm_parallel(rows, (double)rows * (double)x->w * (double)x->c * 0.1, 0, sum_rows, &(counting){job, *x, sums}));
  for (int64_t image = 0; image < x->n; image++) {
    double sum = 0;
    for (int64_t h = 0; h < x->h; h++) sum += sums[image * x->h + h];
    v[2 * image] = job->v[0];
    v[2 * image + 1] = (1 - job->v[0]) * sum / ((double)x->h * (double)x->w);
  }
  return lm_image_spans(job, LOOPS->blend, true, v, 2, 0.2);
}

lm_status lm_run_saturation(const lm_image_job *job) {
  if (job->x.c == 1) return copy_channels(job);
  return lm_image_spans(job, LOOPS->saturate, true, job->v, 0, 0.3);
}

lm_status lm_run_hue(const lm_image_job *job) {
  if (job->x.c == 1) return copy_channels(job);
  return lm_image_spans(job, LOOPS->hue, true, job->v, 0, 1);
}

lm_status lm_run_gamma(const lm_image_job *job) {
  if (job->x.dtype == LM_U8) {
    double table[256];
    for (int i = 0; i < 256; i++) {
      float scaled = powf((float)i * (float)(1.0 / 255), (float)job->v[0]) * (float)job->v[1];
      table[i] = fmax(0, fmin(255, floor((double)scaled * 255.999)));
    }
    return lm_image_spans(job, LOOPS->look_up, false, table, 0, 0.7);
  }
  return lm_image_spans(job, LOOPS->gamma, false, job->v, 0, 2);
}

lm_status lm_plan_grayscale(lm_image_job *job) {
  lm_status status = lm_plan_colors(job);
  if (status == LM_OK) status = lm_image_integer(job, 0, "num_output_channels", 1, 3, &job->y.c);
  if (status == LM_OK && job->y.c == 2) return lm_fail_int("grayscale", "num_output_channels", "1 or 3", 2);
  return status;
}

static void repeat_channel(const void *const *in, void *const *out, int channels, int64_t n, const double *v) {
  (void)channels;
  for (int c = 0; c < (int)v[0]; c++) memcpy(out[c], in[0], (size_t)n * (size_t)v[1]);
}

lm_status lm_run_grayscale(const lm_image_job *job) {
  double v[2] = {job->v[0], (double)lm_dtype_size(job->x.dtype)};
  return lm_image_spans(job, job->x.c == 1 ? repeat_channel : LOOPS->gray, true, v, 0, 0.2);
}

lm_status lm_plan_nothing(lm_image_job *job) {
  (void)job;
  return LM_OK;
}

lm_status lm_run_invert(const lm_image_job *job) {
  return lm_image_spans(job, LOOPS->invert, false, job->v, 0, 0.03 * bytes_of(job));
}

lm_status lm_plan_posterize(lm_image_job *job) {
  int64_t bits;
  return lm_image_integer(job, 0, "bits", 0, 8, &bits);
}

lm_status lm_run_posterize(const lm_image_job *job) {
  return lm_image_spans(job, LOOPS->posterize, false, job->v, 0, 0.03 * bytes_of(job));
}

lm_status lm_plan_solarize(lm_image_job *job) {
  if (job->v[0] <= white_of(job)) return LM_OK;
  return lm_fail_number("solarize", "threshold",
                        lm_text("at most %g for %s", white_of(job), lm_dtype_name(job->x.dtype)), job->v[0]);
}

lm_status lm_run_solarize(const lm_image_job *job) {
  return lm_image_spans(job, LOOPS->solarize, false, job->v, 0, 0.03 * bytes_of(job));
}

/* Merges a plane's rows into one if they are adjacent in memory. */
static void merge_rows(lm_planes *x) {
  if (x->row == x->w * (int64_t)lm_dtype_size(x->dtype)) x->w *= x->h, x->h = 1;
}

static void find_extremes(void *ctx, int64_t first, int64_t last) {
  const counting *j = ctx;
  const lm_image_job *job = j->job;
  const lm_planes *x = &j->x;
  for (int64_t plane = first; plane < last; plane++) {
    double least = INFINITY, largest = -INFINITY;
    for (int64_t h = 0; h < x->h; h++)
      LOOPS->extremes(lm_row_of(x, plane / x->c, plane % x->c, h), x->w, &least, &largest);
    bool even = !(largest > least);
    j->out[2 * plane] = even ? 0 : least;
    j->out[2 * plane + 1] = even                     ? 1
                            : job->x.dtype == LM_F64 ? (largest - least) / white_of(job)
                                                     : (double)((float)(largest - least) * (float)(1 / white_of(job)));
  }
}

lm_status lm_run_autocontrast(const lm_image_job *job) {
  lm_planes x = job->x;
  int64_t planes = x.n * x.c;
  LM_FREED double *v = lm_malloc((size_t)planes * 2 * sizeof *v);
  double values = (double)planes * (double)x.h * (double)x.w;
  if (!v) return LM_E_OOM;
  merge_rows(&x);
  NEED(lm_parallel(planes, values * 0.2, 0, find_extremes, &(counting){job, x, v}));
  return lm_image_spans(job, LOOPS->stretch, false, v, 2, 0.3);
}

/* ---- equalize: Pillow's look-up table (ImageOps.equalize) */

static void count_bytes(const lm_planes *x, int64_t plane, int64_t counts[256]) {
  uint32_t part[4][256];
  memset(part, 0, sizeof part);
  for (int i = 0; i < 256; i++) counts[i] = 0;
  for (int64_t h = 0; h < x->h; h++) {
    const uint8_t *p = (const uint8_t *)lm_row_of(x, plane / x->c, plane % x->c, h);
    int64_t i = 0;
    for (; i + 4 <= x->w; i += 4) part[0][p[i]]++, part[1][p[i + 1]]++, part[2][p[i + 2]]++, part[3][p[i + 3]]++;
    for (; i < x->w; i++) part[0][p[i]]++;
    for (int k = 0; k < 256; k++) { /* a row has fewer pixels than 32 bits count */
      counts[k] += (int64_t)part[0][k] + part[1][k] + part[2][k] + part[3][k];
    }
    memset(part, 0, sizeof part);
  }
}

static void fill_equalizing_table(const int64_t counts[256], double table[256]) {
  int64_t total = 0, last = 0;
  for (int i = 0; i < 256; i++) {
    total += counts[i];
    if (counts[i] > 0) last = counts[i];
  }
  int64_t step = (total - last) / 255, sum = step / 2;
  for (int i = 0; i < 256; i++) {
    table[i] = step == 0 ? i : sum / step > 255 ? 255 : (double)(sum / step);
    sum += counts[i];
  }
}

lm_status lm_plan_equalize(lm_image_job *job) {
  if (job->x.dtype == LM_U8) return LM_OK;
  return lm_fail_dtype("equalize", "x", "uint8", lm_dtype_name(job->x.dtype));
}

static void make_tables(void *ctx, int64_t first, int64_t last) {
  const counting *j = ctx;
  for (int64_t plane = first; plane < last; plane++) {
    lm_planes own = j->x;
    if (own.h * own.w < INT32_MAX) merge_rows(&own);
    int64_t counts[256];
    count_bytes(&own, plane, counts);
    fill_equalizing_table(counts, j->out + 256 * plane);
  }
}

lm_status lm_run_equalize(const lm_image_job *job) {
  int64_t planes = job->x.n * job->x.c;
  LM_FREED double *tables = lm_malloc((size_t)planes * 256 * sizeof *tables);
  if (!tables) return LM_E_OOM;
  double work = (double)planes * (double)job->x.h * (double)job->x.w;
  NEED(lm_parallel(planes, work, 0, make_tables, &(counting){job, job->x, tables}));
  return lm_image_spans(job, LOOPS->look_up, false, tables, 256, 0.7);
}

/* ---- normalize and convert */

lm_status lm_plan_normalize(lm_image_job *job) {
  int64_t scale;
  NEED(lm_image_integer(job, 0, "scale", 0, 1, &scale));
  int numbers = job->count - 1;
  if (numbers != 2 && numbers != 2 * job->x.c) {
    return lm_fail_int("normalize", "mean and std",
                       lm_text("1 or %lld numbers, one for each channel", (long long)job->x.c), numbers / 2);
  }
  if (job->x.dtype == LM_U8) {
    if (!scale) {
      return lm_remedy(lm_fail_dtype("normalize", "x", "floating point", "uint8"),
                       "convert it with ToDtype(\"float32\", {scale = true})");
    }
    job->y.dtype = LM_F32;
  }
  return LM_OK;
}

lm_status lm_run_normalize(const lm_image_job *job) {
  int64_t c = job->x.c, planes = job->x.n * c;
  LM_FREED double *v = lm_malloc((size_t)planes * 2 * sizeof *v);
  if (!v) return LM_E_OOM;
  int given = (job->count - 1) / 2;
  for (int64_t plane = 0; plane < planes; plane++) {
    int64_t i = given == 1 ? 0 : plane % c;
    double mean = job->v[1 + i], std = job->v[1 + given + i];
    v[2 * plane] = job->x.dtype == LM_U8 ? 1 / (255 * std) : mean;
    v[2 * plane + 1] = job->x.dtype == LM_U8 ? -mean / std : 1 / std;
  }
  return lm_image_spans(job, LOOPS->normalize, false, v, 2, 0.2);
}

lm_status lm_plan_convert(lm_image_job *job) {
  job->y.dtype = job->x.dtype == LM_U8 ? LM_F32 : LM_U8;
  return LM_OK;
}

lm_status lm_run_convert(const lm_image_job *job) { return lm_image_spans(job, LOOPS->convert, false, job->v, 0, 0.2); }
