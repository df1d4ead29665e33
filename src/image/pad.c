/* Pads images with a constant, with the edge pixels, or with the image mirrored. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/message.h"
#include "image/transform_job.h"

enum { LEFT, TOP, RIGHT, BOTTOM, MODE, FILL };

/* Returns the index on a side of n that padded pixel i, counted from the image's first, copies; -1: the fill. */
static int64_t source_of(int64_t i, int64_t n, int mode) {
  if (i >= 0 && i < n) return i;
  if (mode == LM_BORDER_CONSTANT) return -1;
  if (mode == LM_BORDER_EDGE) return i < 0 ? 0 : n - 1;
  if (mode == LM_BORDER_REFLECT) return i < 0 ? -i : 2 * (n - 1) - i;
  int64_t at = (i % (2 * n) + 2 * n) % (2 * n);
  return at < n ? at : 2 * n - 1 - at;
}

lm_status lm_plan_pad(lm_image_job *job) {
  static const char *const sides[] = {"padding on the left", "padding on the top", "padding on the right",
                                      "padding on the bottom"};
  int64_t by[4], mode, fills = job->count - FILL;
  for (int i = 0; i < 4; i++) {
    NEED(lm_image_integer(job, i, sides[i], 0, LM_MAX_SIDE, &by[i]));
    int64_t size = i % 2 ? job->x.h : job->x.w;
    if (job->v[MODE] == LM_BORDER_REFLECT && by[i] >= size) {
      return lm_fail_int(
          "pad", sides[i],
          lm_text("less than the image's %s (%lld) for mode reflect", i % 2 ? "height" : "width", (long long)size),
          by[i]);
    }
  }
  NEED(lm_image_integer(job, MODE, "padding_mode", LM_BORDER_CONSTANT, LM_BORDER_SYMMETRIC, &mode));
  if (fills != 1 && (fills != job->x.c || mode != LM_BORDER_CONSTANT)) {
    return lm_fail_int("pad", "fill", lm_text("1 or %lld numbers, one for each channel", (long long)job->x.c), fills);
  }
  job->y.w += by[LEFT] + by[RIGHT], job->y.h += by[TOP] + by[BOTTOM];
  if (job->y.w > LM_MAX_SIDE || job->y.h > LM_MAX_SIDE) {
    return lm_fail_value("pad", "height and width of the result", lm_text("at most %d", LM_MAX_SIDE),
                         lm_text("%lld x %lld", (long long)job->y.h, (long long)job->y.w));
  }
  return LM_OK;
}

void lm_image_element(lm_dtype dtype, double v, void *out) {
  switch (dtype) {
    case LM_BOOL: *(uint8_t *)out = v != 0; return;
#define X(id, name, type, low, high, ...) \
  case LM_##id: *(type *)out = v <= (double)(low) ? (low) : v >= (double)(high) ? (type)(high) : (type)v; return;
      LM_INTEGER_DTYPES(X)
#undef X
    case LM_F32: *(float *)out = (float)v; return;
    default: *(double *)out = v;
  }
}

/* Fills n pixels with one element. */
static void fill_row(char *to, int64_t n, const char *element, size_t bytes) {
  if (n <= 0) return;
  size_t all = (size_t)n * bytes, done = bytes;
  memcpy(to, element, bytes);
  for (; done < all; done *= 2) memcpy(to + done, to, done < all - done ? done : all - done);
}

static void pad_rows(void *ctx, int64_t first, int64_t last) {
  const lm_image_job *job = ctx;
  const lm_planes *x = &job->x, *y = &job->y;
  const double *v = job->v;
  int64_t left = (int64_t)v[LEFT], top = (int64_t)v[TOP], bytes = (int64_t)lm_dtype_size(x->dtype);
  int mode = (int)v[MODE], fills = job->count - FILL;
  for (int64_t row = first; row < last; row++) {
    int64_t plane = row / y->h, h = row % y->h, image = plane / y->c, c = plane % y->c;
    int64_t from = source_of(h - top, x->h, mode);
    char *to = lm_row_of(y, image, c, h);
    _Alignas(8) char fill[8];
    lm_image_element(job->stored, v[FILL + (fills > 1 ? c : 0)], fill);
    if (from < 0) {
      fill_row(to, y->w, fill, (size_t)bytes);
      continue;
    }
    const char *src = lm_row_of(x, image, c, from);
    memcpy(to + left * bytes, src, (size_t)(x->w * bytes));
    if (mode == LM_BORDER_CONSTANT) {
      fill_row(to, left, fill, (size_t)bytes);
      fill_row(to + (left + x->w) * bytes, y->w - left - x->w, fill, (size_t)bytes);
      continue;
    }
    for (int64_t i = 0; i < y->w; i++) {
      if (i == left) i += x->w;
      if (i >= y->w) break;
      memcpy(to + i * bytes, src + source_of(i - left, x->w, mode) * bytes, (size_t)bytes);
    }
  }
}

lm_status lm_run_pad(const lm_image_job *job) {
  const lm_planes *y = &job->y;
  int64_t rows = y->n * y->c * y->h;
  double work = (double)rows * (double)y->w * 0.03 * (double)lm_dtype_size(y->dtype);
  return lm_parallel(rows, work, 0, pad_rows, (void *)job);
}
