/* Warps images by affine and perspective maps of coordinates. Pixels are looked up as by ATen's grid_sample with
 * padding_mode zeros and align_corners false. */

#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/message.h"
#include "image/transform_job.h"

/* Checks the numbers of a map: bilinear and nfill at `at`, then `coefficients` of them, then the fills. */
static lm_status check_map(lm_image_job *job, int at, int coefficients) {
  int64_t bilinear, fills;
  lm_status status = LM_OK;
  NEED(lm_image_integer(job, at, "bilinear", 0, 1, &bilinear));
  NEED(lm_image_integer(job, at + 1, "the length of fill", 0, job->x.c, &fills));
  if (job->count != at + 2 + coefficients + (int)fills) {
    status = lm_fail_int(job->name, "numbers", lm_text("a list of %d", at + 2 + coefficients + (int)fills), job->count);
  } else if (fills > 1 && fills != job->x.c) {
    status = lm_fail_int(job->name, "fill", lm_text("1 or %d numbers, one for each channel", (int)job->x.c), fills);
  }
  return status;
}

/* Returns the source positions of output row y. */
typedef lm_walk (*lm_walk_of)(const lm_image_job *job, int64_t y);

typedef struct warping {
  const lm_image_job *job;
  int at, coefficients; /* indices into its numbers: first one; number of coefficients */
  lm_walk_of walk_of;
  int64_t groups; /* number of groups of channels */
} warping;

static void warp_rows(void *ctx, int64_t begin, int64_t end) {
  const warping *w = ctx;
  const lm_planes *x = &w->job->x, *y = &w->job->y;
  const lm_pixel_loops *loops = LM_PIXEL_LOOPS(x->dtype);
  bool bilinear = w->job->v[w->at] != 0;
  int fills = (int)w->job->v[w->at + 1];
  const double *fill = w->job->v + w->at + 2 + w->coefficients;
  for (int64_t task = begin; task < end; task++) {
    int64_t image = task / (y->h * w->groups), group = task / y->h % w->groups, row = task % y->h;
    int64_t first = group * LM_MAX_CHANNELS, count = x->c - first < LM_MAX_CHANNELS ? x->c - first : LM_MAX_CHANNELS;
    double own[LM_MAX_CHANNELS] = {0};
    _Alignas(8) char elements[LM_MAX_CHANNELS * 8];
    void *out[LM_MAX_CHANNELS];
    for (int64_t c = 0; c < count; c++) {
      if (fills > 0) own[c] = fill[fills > 1 ? first + c : 0];
      lm_image_element(w->job->stored, lm_dtype_is_float(w->job->stored) ? own[c] : rint(own[c]),
                       elements + c * (int64_t)lm_dtype_size(x->dtype));
      out[c] = lm_row_of(y, image, first + c, row);
    }
    lm_warp_from from = {.data = lm_row_of(x, image, first, 0),
                         .channel = x->channel,
                         .row = x->row,
                         .width = x->w,
                         .height = x->h,
                         .channels = (int)count,
                         .filled = fills > 0,
                         .fill = own,
                         .elements = elements};
    lm_walk walk = w->walk_of(w->job, row);
    (bilinear ? loops->bilinear : loops->nearest)(&from, &walk, y->w, out);
  }
}

static lm_status warp_image(const lm_image_job *job, int at, int coefficients, lm_walk_of walk_of) {
  const lm_planes *x = &job->x, *y = &job->y;
  warping w = {job, at, coefficients, walk_of, (x->c + LM_MAX_CHANNELS - 1) / LM_MAX_CHANNELS};
  int64_t rows = y->n * y->h;
  return lm_parallel(rows * w.groups, (double)rows * (double)y->w * (double)(x->c + 1) * 2, 0, warp_rows, &w);
}

lm_status lm_plan_affine(lm_image_job *job) {
  NEED(lm_image_integer(job, 0, "the height", 1, LM_MAX_SIDE, &job->y.h));
  NEED(lm_image_integer(job, 1, "the width", 1, LM_MAX_SIDE, &job->y.w));
  return check_map(job, 2, 6);
}

static lm_walk affine_walk(const lm_image_job *job, int64_t row) {
  const double *m = job->v + 4;
  double x = -0.5 * (double)(job->y.w - 1), y = (double)row - 0.5 * (double)(job->y.h - 1);
  return (lm_walk){.x0 = m[0] * x + m[1] * y + m[2] + 0.5 * (double)(job->x.w - 1),
                   .dx = m[0],
                   .y0 = m[3] * x + m[4] * y + m[5] + 0.5 * (double)(job->x.h - 1),
                   .dy = m[3],
                   .z0 = 1};
}

lm_status lm_run_affine(const lm_image_job *job) { return warp_image(job, 2, 6, affine_walk); }

lm_status lm_plan_perspective(lm_image_job *job) { return check_map(job, 0, 8); }

static lm_walk perspective_walk(const lm_image_job *job, int64_t row) {
  const double *m = job->v + 2;
  double x = 0.5, y = (double)row + 0.5;
  lm_walk w = {.x0 = m[0] * x + m[1] * y + m[2],
               .dx = m[0],
               .y0 = m[3] * x + m[4] * y + m[5],
               .dy = m[3],
               .z0 = m[6] * x + m[7] * y + 1,
               .dz = m[6]};
  if (w.dz == 0 && w.z0 == 1) w.x0 -= 0.5, w.y0 -= 0.5;
  return w;
}

lm_status lm_run_perspective(const lm_image_job *job) { return warp_image(job, 0, 8, perspective_walk); }
