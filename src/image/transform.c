#include "image/transform.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/message.h"
#include "image/transform_job.h"

/* Every kind takes at most as many numbers as the lists that it reads may have. */
enum { MANY = 1 << 28 };

static const lm_image_kind kinds[] = {
#define ROW(name, least, most) \
  { #name, least, most, lm_plan_##name, lm_run_##name }
    ROW(resize, 8, 8),       ROW(affine, 10, MANY), ROW(perspective, 10, MANY), ROW(pad, 6, MANY),
    ROW(flip, 2, 2),         ROW(rotate90, 1, 1),   ROW(brightness, 1, 1),      ROW(contrast, 1, 1),
    ROW(saturation, 1, 1),   ROW(hue, 1, 1),        ROW(gamma, 2, 2),           ROW(sharpness, 1, 1),
    ROW(grayscale, 1, 1),    ROW(invert, 0, 0),     ROW(posterize, 1, 1),       ROW(solarize, 1, 1),
    ROW(autocontrast, 0, 0), ROW(equalize, 0, 0),   ROW(blur, 4, MANY),         ROW(normalize, 3, MANY),
    ROW(convert, 0, 0),
#undef ROW
};

lm_status lm_image_whole(const lm_image_job *job, int i, const char *what, int64_t low, int64_t high, int64_t *out) {
  double v = job->v[i];
  if (!(v >= (double)low && v <= (double)high) || v != floor(v)) {
    return lm_fail_number(job->name, what, lm_text("an integer from %lld to %lld", (long long)low, (long long)high), v);
  }
  *out = (int64_t)v;
  return LM_OK;
}

static lm_planes planes_of(const lm_tensor *t) {
  int d = t->ndim - 3;
  int64_t bytes = (int64_t)lm_dtype_size(t->dtype);
  return (lm_planes){.dtype = t->dtype,
                     .n = d ? t->size[0] : 1,
                     .c = t->size[d],
                     .h = t->size[d + 1],
                     .w = t->size[d + 2],
                     .image = d ? t->stride[0] * bytes : 0,
                     .channel = t->stride[d] * bytes,
                     .row = t->stride[d + 1] * bytes,
                     .data = t->data};
}

static bool rows_are_dense(const lm_tensor *t) { return t->size[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1; }

static lm_status check_image(const char *name, const lm_tensor *x) {
  if (x->ndim != 3 && x->ndim != 4) { return lm_fail_shape(name, "x", "[C, H, W] or [N, C, H, W]", lm_shape_of(x)); }
  if (x->dtype != LM_U8 && x->dtype != LM_F32 && x->dtype != LM_F64) {
    return lm_fail_dtype(name, "x", "uint8, float32 or float64", lm_dtype_name(x->dtype));
  }
  if (LM_DEVICE_KIND(x->device) != LM_CPU) {
    return lm_fail(LM_E_DEVICE, "%s: x must be on cpu, got %s; move it with :cpu()", name, lm_device_name(x->device));
  }
  for (int d = 0; d < x->ndim; d++) {
    if (x->size[d] < 1 || (d >= x->ndim - 2 && x->size[d] > LM_MAX_SIDE)) {
      const char *expected = lm_text("[*, C, H, W] with at least 1 channel and H and W from 1 to %d", LM_MAX_SIDE);
      return lm_fail_shape(name, "x", expected, lm_shape_of(x));
    }
  }
  if (!rows_are_dense(x)) { return lm_fail(LM_E_SHAPE, "%s: rows of x must be contiguous; call :contiguous()", name); }
  return LM_OK;
}

static lm_status check_given(const char *name, const lm_tensor *given, const lm_tensor *x, lm_dtype dtype,
                             const int64_t *size) {
  bool same = given->ndim == x->ndim && given->dtype == dtype && given->device == x->device;
  for (int d = 0; same && d < x->ndim; d++) same = given->size[d] == size[d];
  if (!same || !rows_are_dense(given) || lm_overlaps_itself(given)) {
    lm_fail_value(name, "out",
                  lm_text("%s %s with contiguous rows", lm_dtype_name(dtype), lm_shape_text(x->ndim, size)),
                  lm_text("%s %s", lm_dtype_name(given->dtype), lm_shape_of(given)));
    return LM_E_SHAPE;
  }
  if (given->storage == x->storage && given->data == x->data) {
    return lm_fail(LM_E_ARG, "%s: out must not be x", name);
  }
  return LM_OK;
}

lm_status lm_image_transform(const char *name, lm_tensor *x, int n, const double *v, lm_tensor *given,
                             lm_tensor **out) {
  const lm_image_kind *kind = NULL;
  lm_status status;
  lm_tensor *made = NULL;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, name) == 0) kind = &kinds[i];
  }
  if (!kind) return lm_fail_value("image_transform", "name", "a transform", lm_text("'%s'", lm_ellipsize(name, 60)));
  if (n < kind->least || n > kind->most) {
    return lm_fail_int(kind->name, "numbers",
                       lm_text("a list of %s%d", kind->least == kind->most ? "" : "at least ", kind->least), n);
  }
  for (int i = 0; i < n; i++) {
    if (!isfinite(v[i])) return lm_fail_number(kind->name, lm_text("numbers[%d]", i + 1), "finite", v[i]);
  }
  TRY(check_image(kind->name, x));
  lm_image_job job = {.name = kind->name, .count = n, .v = v, .x = planes_of(x), .y = planes_of(x)};
  TRY(kind->plan(&job));
  int64_t size[4] = {job.y.n, job.y.c, job.y.h, job.y.w}, *sizes = size + (4 - x->ndim);
  if (given) {
    TRY(check_given(kind->name, given, x, job.y.dtype, sizes));
    made = lm_retain(given);
    lm_bump(made, -1);
  } else {
    TRY(lm_tensor_empty(job.y.dtype, x->device, x->ndim, sizes, LM_CONTIGUOUS, &made));
  }
  job.y = planes_of(made);
  TRY(kind->run(&job));
  *out = made;
  made = NULL;
done:
  lm_release(made);
  return status;
}

/* Pixels of a task: some rows, or parts of what is as good as one row. */
enum { TASK = 16384 };

typedef struct spanning {
  lm_planes x, y;
  lm_span span;
  bool together;
  const double *v;
  int64_t step, rows, across, down; /* rows of a task, and how many tasks lie across and down a plane */
} spanning;

static void run_span_tasks(void *ctx, int64_t begin, int64_t end) {
  const spanning *s = ctx;
  const lm_planes *x = &s->x, *y = &s->y;
  int64_t xbytes = (int64_t)lm_dtype_size(x->dtype), ybytes = (int64_t)lm_dtype_size(y->dtype);
  int channels = s->together ? (int)x->c : 1, results = s->together ? (int)y->c : 1;
  for (int64_t task = begin; task < end; task++) {
    int64_t plane = task / (s->down * s->across), part = task % (s->down * s->across);
    int64_t first = part / s->across * s->rows, from = s->across > 1 ? part % s->across * TASK : 0;
    int64_t n = s->across > 1 && x->w - from > TASK ? TASK : x->w - from;
    int64_t image = s->together ? plane : plane / x->c, channel = s->together ? 0 : plane % x->c;
    const void *in[LM_MAX_CHANNELS];
    void *to[LM_MAX_CHANNELS];
    for (int64_t r = first; r < first + s->rows && r < x->h; r++) {
      for (int c = 0; c < channels; c++) in[c] = lm_row_of(x, image, channel + c, r) + from * xbytes;
      for (int c = 0; c < results; c++) to[c] = lm_row_of(y, image, channel + c, r) + from * ybytes;
      s->span(in, to, channels, n, s->v + (s->together ? image : plane) * s->step);
    }
  }
}

void lm_image_spans(const lm_image_job *job, lm_span span, bool together, const double *v, int64_t step, double work) {
  spanning s = {.x = job->x, .y = job->y, .span = span, .together = together, .v = v, .step = step};
  lm_planes *x = &s.x;
  int64_t xbytes = (int64_t)lm_dtype_size(x->dtype), ybytes = (int64_t)lm_dtype_size(s.y.dtype);
  if (span != LM_PIXEL_LOOPS(x->dtype)->reverse && x->row == x->w * xbytes && s.y.row == x->w * ybytes) {
    x->w *= x->h, x->h = 1;
  }
  s.rows = x->w >= TASK ? 1 : TASK / x->w;
  s.across = x->h == 1 ? (x->w + TASK - 1) / TASK : 1;
  s.down = (x->h + s.rows - 1) / s.rows;
  double values = (double)x->n * (double)x->c * (double)x->h * (double)x->w;
  lm_parallel((together ? x->n : x->n * x->c) * s.down * s.across, values * work, 0, run_span_tasks, &s);
}
