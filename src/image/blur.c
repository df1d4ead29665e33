/* Computes sums over neighbors: Gaussian blur as two 1-d kernels, and sharpening. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/message.h"
#include "image/transform_job.h"

enum { ROWS = 32 }; /* result rows at a time */

lm_status lm_plan_blur(lm_image_job *job) {
  int64_t kx, ky;
  NEED(lm_image_integer(job, 0, "kernel width", 1, LM_MAX_SIDE, &kx));
  NEED(lm_image_integer(job, 1, "kernel height", 1, LM_MAX_SIDE, &ky));
  if (kx % 2 == 0 || ky % 2 == 0 || job->count != 2 + kx + ky) {
    return lm_fail_value("blur", "kernel", "of odd sizes with a weight for each row and column",
                         lm_text("%lld x %lld and %d weights", (long long)kx, (long long)ky, job->count - 2));
  }
  if (kx / 2 >= job->x.w || ky / 2 >= job->x.h) {
    lm_fail_value("blur", "kernel_size",
                  lm_text("less than twice the image's %lld x %lld", (long long)job->x.h, (long long)job->x.w),
                  lm_text("%lld x %lld", (long long)ky, (long long)kx));
    return LM_E_SHAPE;
  }
  return LM_OK;
}

static int64_t reflect(int64_t i, int64_t n) { return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i; }

typedef struct blurring {
  const lm_image_job *job;
  const lm_pixel_loops *loops;
  int64_t kx, ky;
  const void *wx, *wy;
  int64_t real;  /* bytes of a number in the computation */
  int64_t parts; /* parts of ROWS rows in a plane */
} blurring;

/* Sums a row of a plane along x. `padded` is scratch for the row and its reflections. */
static void sum_row(const blurring *b, const char *src, char *padded, char *to) {
  int64_t half = b->kx / 2, w = b->job->x.w, real = b->real;
  b->loops->widen(padded + half * real, src, w);
  for (int64_t i = 1; i <= half; i++) {
    memcpy(padded + (half - i) * real, padded + (half + i) * real, (size_t)real);
    memcpy(padded + (half + w - 1 + i) * real, padded + (half + w - 1 - i) * real, (size_t)real);
  }
  b->loops->slide(to, padded, w, b->wx, b->kx);
}

static void blur_rows(const blurring *b, int64_t plane, int64_t low, int64_t high, const void **rows, char *scratch) {
  const lm_planes *x = &b->job->x, *y = &b->job->y;
  int64_t half = b->ky / 2, width = x->w * b->real, first = low - half;
  char *padded = scratch, *sums = scratch + (x->w + b->kx) * b->real;
  for (int64_t h = first; h < high + half; h++) {
    sum_row(b, lm_row_of(x, plane / x->c, plane % x->c, reflect(h, x->h)), padded, sums + (h - first) * width);
  }
  for (int64_t h = low; h < high; h++) {
    for (int64_t k = 0; k < b->ky; k++) rows[k] = sums + (h - low + k) * width;
    b->loops->stack(lm_row_of(y, plane / x->c, plane % x->c, h), rows, x->w, b->wy, b->ky);
  }
}

static void blur_tasks(void *ctx, int64_t first, int64_t last) {
  const blurring *b = ctx;
  const lm_planes *x = &b->job->x;
  const void **rows = lm_scratch();
  for (int64_t task = first; task < last; task++) {
    int64_t low = task % b->parts * ROWS, high = low + ROWS < x->h ? low + ROWS : x->h;
    blur_rows(b, task / b->parts, low, high, rows, (char *)(rows + b->ky));
  }
}

lm_status lm_run_blur(const lm_image_job *job) {
  const lm_planes *x = &job->x;
  blurring b = {.job = job, .loops = LM_PIXEL_LOOPS(x->dtype), .kx = (int64_t)job->v[0], .ky = (int64_t)job->v[1]};
  b.real = x->dtype == LM_F64 ? 8 : 4;
  b.parts = (x->h + ROWS - 1) / ROWS;
  int64_t planes = x->n * x->c;
  double work = (double)planes * (double)x->h * (double)x->w * 0.1 * (double)(8 + b.kx + b.ky);
  size_t numbers = (size_t)(x->w + b.kx) + (size_t)(ROWS + b.ky) * (size_t)x->w;
  LM_FREED char *w = lm_malloc((size_t)((b.kx + b.ky) * b.real));
  if (!w) return LM_E_OOM;
  for (int64_t i = 0; i < b.kx + b.ky; i++) {
    if (b.real == 8) {
      ((double *)w)[i] = job->v[2 + i];
    } else {
      ((float *)w)[i] = (float)job->v[2 + i];
    }
  }
  b.wx = w, b.wy = w + b.kx * b.real;
  size_t scratch = (size_t)b.ky * sizeof(void *) + numbers * (size_t)b.real + 64;
  return lm_parallel(planes * b.parts, work, scratch, blur_tasks, &b);
}

/* Sharpens rows; border pixels are only clamped to black and white. */
static void sharpen_rows(void *ctx, int64_t first, int64_t last) {
  const lm_image_job *job = ctx;
  const lm_planes *x = &job->x, *y = &job->y;
  const lm_pixel_loops *loops = LM_PIXEL_LOOPS(x->dtype);
  const double none[2] = {1, 0};
  int64_t bytes = (int64_t)lm_dtype_size(x->dtype), end = (x->w - 1) * bytes;
  bool small = x->h <= 2 || x->w <= 2;
  for (int64_t row = first; row < last; row++) {
    int64_t plane = row / x->h, h = row % x->h;
    const char *src = lm_row_of(x, plane / x->c, plane % x->c, h);
    char *to = lm_row_of(y, plane / x->c, plane % x->c, h);
    if (small) {
      memcpy(to, src, (size_t)(x->w * bytes));
    } else if (h == 0 || h == x->h - 1) {
      loops->blend((const void *const[]){src}, (void *const[]){to}, 1, x->w, none);
    } else {
      loops->sharpen(to, (const void *const[]){src - x->row, src, src + x->row}, x->w, job->v[0]);
      loops->blend((const void *const[]){src}, (void *const[]){to}, 1, 1, none);
      loops->blend((const void *const[]){src + end}, (void *const[]){to + end}, 1, 1, none);
    }
  }
}

lm_status lm_run_sharpness(const lm_image_job *job) {
  int64_t rows = job->x.n * job->x.c * job->x.h;
  return lm_parallel(rows, (double)rows * (double)job->x.w * 0.5, 0, sharpen_rows, (void *)job);
}
