#include "image/transform.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/message.h"
#include "image/transform_job.h"

/* The maximum number of numbers for transforms that take lists. */
enum { MANY = 1 << 28, COLORS = -1, ALWAYS = MANY };

static const lm_image_kind kinds[] = {
#define ROW(name, plan, least, most, mode, nearest) \
  { #name, least, most, mode, nearest, lm_plan_##plan, lm_run_##name }
#define COLOR(name, plan, least, most) ROW(name, plan, least, most, COLORS, 0)
    ROW(resize, resize, 8, 8, 2, LM_RESIZE_NEAREST_EXACT),
    ROW(affine, affine, 10, MANY, 2, 0),
    ROW(perspective, perspective, 10, MANY, 0, 0),
    ROW(pad, pad, 6, MANY, 0, ALWAYS),
    ROW(flip, flip, 2, 2, 0, ALWAYS),
    ROW(rotate90, rotate90, 1, 1, 0, ALWAYS),
    ROW(blur, blur, 4, MANY, 0, 0),
    COLOR(brightness, colors, 1, 1),
    COLOR(contrast, colors, 1, 1),
    COLOR(saturation, colors, 1, 1),
    COLOR(hue, colors, 1, 1),
    COLOR(gamma, nothing, 2, 2),
    COLOR(sharpness, colors, 1, 1),
    COLOR(grayscale, grayscale, 1, 1),
    COLOR(invert, nothing, 0, 0),
    COLOR(posterize, posterize, 1, 1),
    COLOR(solarize, solarize, 1, 1),
    COLOR(autocontrast, colors, 0, 0),
    COLOR(equalize, equalize, 0, 0),
    COLOR(normalize, normalize, 3, MANY),
    COLOR(convert, convert, 0, 0),
#undef COLOR
#undef ROW
};

lm_status lm_image_integer(const lm_image_job *job, int i, const char *what, int64_t low, int64_t high, int64_t *out) {
  double v = job->v[i];
  if (!(v >= (double)low && v <= (double)high) || v != floor(v)) {
    return lm_fail_number(job->name, what, lm_text("an integer from %lld to %lld", (long long)low, (long long)high), v);
  }
  *out = (int64_t)v;
  return LM_OK;
}

/* ---- the loops' form of images: [N, C, H, W] of uint8, float32 or float64 */

/* Returns the dtype of the loops that move elements of a dtype's size; LM_NO_DTYPE for a size without loops. */
static lm_dtype moved_as(lm_dtype dtype) {
  size_t bytes = lm_dtype_size(dtype);
  return bytes == 1 ? LM_U8 : bytes == 4 ? LM_F32 : bytes == 8 ? LM_F64 : LM_NO_DTYPE;
}

static bool has_loops(lm_dtype dtype) { return dtype == LM_U8 || dtype == LM_F32 || dtype == LM_F64; }

/* Describes t's elements as `dtype`; merges the dims before the last three, which is_strided allows. */
static lm_planes planes_of(const lm_tensor *t, lm_dtype dtype) {
  int d = t->ndim - 3;
  int64_t bytes = (int64_t)lm_dtype_size(t->dtype), n = 1, image = 0;
  for (int i = 0; i < d; i++) {
    n *= t->size[i];
    if (t->size[i] != 1) image = t->stride[i] * bytes;
  }
  return (lm_planes){.dtype = dtype,
                     .n = n,
                     .c = d < 0 ? 1 : t->size[d],
                     .h = t->size[d + 1],
                     .w = t->size[d + 2],
                     .image = image,
                     .channel = d < 0 ? 0 : t->stride[d] * bytes,
                     .row = t->stride[d + 1] * bytes,
                     .data = t->data};
}

/* Returns true if a row's pixels are adjacent and images are equally spaced, across all leading dims. */
static bool is_strided(const lm_tensor *t) {
  int64_t next = -1; /* expected stride: the inner dim's stride times its size */
  for (int d = t->ndim - 4; d >= 0; d--) {
    if (t->size[d] == 1) continue;
    if (next >= 0 && t->stride[d] != next) return false;
    next = t->stride[d] * t->size[d];
  }
  return t->size[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1;
}

/* Returns in *out x itself, if it has the dtype and a layout that planes_of accepts, else a copy that does. */
static lm_status to_form(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  if (dtype == x->dtype && is_strided(x)) {
    *out = lm_retain(x);
    return LM_OK;
  }
  NEED(lm_tensor_empty(dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, out));
  return lm_copy(x, *out);
}

static lm_status check_image(const lm_image_kind *kind, const lm_tensor *x) {
  const char *name = kind->name;
  if (x->ndim < 2) { return lm_fail_shape(name, "x", "[..., C, H, W] or [H, W]", lm_shape_of(x)); }
  if (kind->mode == COLORS && !lm_dtype_is_float(x->dtype) && x->dtype != LM_U8) {
    return lm_remedy(lm_fail_dtype(name, "x", "uint8 or floating", lm_dtype_name(x->dtype)),
                     "convert it with ToDtype(\"float32\", {scale = true})");
  }
  if (LM_DEVICE_KIND(x->device) != LM_CPU) {
    return lm_fail(LM_E_DEVICE, "%s: x must be on cpu, got %s; move it with :cpu()", name, lm_device_name(x->device));
  }
  for (int d = x->ndim > 2 ? x->ndim - 3 : 0; d < x->ndim; d++) {
    if (x->size[d] < 1 || (d >= x->ndim - 2 && x->size[d] > LM_MAX_SIDE)) {
      const char *expected = lm_text("[..., C, H, W] with at least 1 channel and H and W from 1 to %d", LM_MAX_SIDE);
      return lm_fail_shape(name, "x", expected, lm_shape_of(x));
    }
  }
  return LM_OK;
}

static lm_status check_given(const char *name, const lm_tensor *given, const lm_tensor *x, lm_dtype dtype, int ndim,
                             const int64_t *size) {
  bool same = given->ndim == ndim && given->dtype == dtype && given->device == x->device;
  for (int d = 0; same && d < ndim; d++) same = given->size[d] == size[d];
  if (!same || !is_strided(given) || lm_overlaps_itself(given)) {
    lm_fail_value(name, "out", lm_text("%s %s with contiguous rows", lm_dtype_name(dtype), lm_shape_text(ndim, size)),
                  lm_text("%s %s", lm_dtype_name(given->dtype), lm_shape_of(given)));
    return LM_E_SHAPE;
  }
  if (given->storage == x->storage && given->data == x->data) {
    return lm_fail(LM_E_ARG, "%s: out must not be x", name);
  }
  return LM_OK;
}

/* Runs a checked kind. Halves are computed in float32, and so are integers if values change. */
static lm_status run_kind(const lm_image_kind *kind, lm_tensor *x, lm_image_job *job, lm_tensor *given,
                          lm_tensor **out) {
  LM_OWNED *in = NULL, *dst = NULL, *result = NULL;
  bool moves = kind->mode != COLORS && job->v[kind->mode] <= kind->nearest;
  lm_dtype form = has_loops(x->dtype) ? (lm_dtype)x->dtype : moves ? moved_as(x->dtype) : LM_NO_DTYPE;
  bool converts = form == LM_NO_DTYPE;
  if (converts) form = LM_F32;
  NEED(to_form(x, converts ? form : (lm_dtype)x->dtype, &in));
  job->stored = in->dtype;
  job->x = job->y = planes_of(in, form);
  NEED(kind->plan(job));
  lm_dtype dtype = job->y.dtype == form ? (lm_dtype)x->dtype : job->y.dtype;
  int64_t size[LM_MAX_DIMS];
  int ndim = x->ndim == 2 && job->y.c > 1 ? 3 : x->ndim;
  memcpy(size, x->size, sizeof *size * (size_t)x->ndim);
  if (ndim > 2) size[ndim - 3] = job->y.c;
  size[ndim - 2] = job->y.h, size[ndim - 1] = job->y.w;
  if (given) {
    NEED(check_given(kind->name, given, x, dtype, ndim, size));
    result = lm_retain(given);
    lm_bump(result, -1);
  } else {
    NEED(lm_tensor_empty(dtype, x->device, ndim, size, LM_CONTIGUOUS, &result));
  }
  converts = converts && job->y.dtype == form;
  if (converts) {
    NEED(lm_tensor_empty(form, x->device, ndim, size, LM_CONTIGUOUS, &dst));
  } else {
    dst = lm_retain(result);
  }
  job->y = planes_of(dst, job->y.dtype);
  if (dst->numel > 0) NEED(kind->run(job));
  if (converts) {
    bool rounds = !lm_dtype_is_float(dtype) && strcmp(kind->name, "pad") != 0 && dtype != LM_BOOL;
    for (int64_t i = 0; rounds && i < dst->numel; i++) ((float *)dst->data)[i] = rintf(((float *)dst->data)[i]);
    NEED(lm_copy(dst, result));
  }
  *out = lm_tensor_take(&result);
  return LM_OK;
}

lm_status lm_image_transform(const char *name, lm_tensor *x, int n, const double *v, lm_tensor *given,
                             lm_tensor **out) {
  const lm_image_kind *kind = NULL;
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
  NEED(check_image(kind, x));
  return run_kind(kind, x, &(lm_image_job){.name = kind->name, .count = n, .v = v}, given, out);
}

/* Number of pixels per task: some rows, or a part of a long row. */
enum { TASK = 16384 };

typedef struct spanning {
  lm_planes x, y;
  lm_span span;
  bool together;
  const double *v;
  int64_t step, rows, across, down; /* rows per task; tasks across and down a plane */
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

lm_status lm_image_spans(const lm_image_job *job, lm_span span, bool together, const double *v, int64_t step,
                         double work) {
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
  return lm_parallel((together ? x->n : x->n * x->c) * s.down * s.across, values * work, 0, run_span_tasks, &s);
}
