/* Moves pixels without changing them: flips and quarter turns. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "image/transform_job.h"

lm_status lm_plan_flip(lm_image_job *job) {
  int64_t flag;
  NEED(lm_image_integer(job, 0, "horizontally", 0, 1, &flag));
  return lm_image_integer(job, 1, "vertically", 0, 1, &flag);
}

static void copy_rows(const void *const *in, void *const *out, int channels, int64_t n, const double *v) {
  for (int c = 0; c < channels; c++) memcpy(out[c], in[c], (size_t)n * (size_t)v[0]);
}

lm_status lm_run_flip(const lm_image_job *job) {
  lm_image_job flipped = *job;
  const lm_pixel_loops *loops = LM_PIXEL_LOOPS(job->x.dtype);
  double bytes = (double)lm_dtype_size(job->x.dtype);
  if (job->v[1] != 0) { /* reads from the last row up */
    flipped.x.data += (flipped.x.h - 1) * flipped.x.row;
    flipped.x.row = -flipped.x.row;
  }
  return lm_image_spans(&flipped, job->v[0] != 0 ? loops->reverse : copy_rows, false, &bytes, 0, 0.03 * bytes);
}

lm_status lm_plan_rotate90(lm_image_job *job) {
  int64_t turns;
  lm_status status = lm_image_integer(job, 0, "the number of quarter turns", 0, 3, &turns);
  if (status == LM_OK && turns % 2 == 1) job->y.h = job->x.w, job->y.w = job->x.h;
  return status;
}

enum { TASK_ROWS = 32 }; /* rows per task */

static void turn_tasks(void *ctx, int64_t begin, int64_t end) {
  const lm_image_job *job = ctx;
  const lm_planes *x = &job->x, *y = &job->y;
  int64_t turns = (int64_t)job->v[0], bytes = (int64_t)lm_dtype_size(x->dtype);
  int64_t parts = (y->h + TASK_ROWS - 1) / TASK_ROWS;
  for (int64_t task = begin; task < end; task++) {
    int64_t plane = task / parts, first = task % parts * TASK_ROWS;
    int64_t rows = y->h - first < TASK_ROWS ? y->h - first : TASK_ROWS;
    /* Row i of y is column i of x, read downwards (3 turns: upwards); for 1 turn columns count from the right. */
    const char *src = lm_row_of(x, plane / x->c, plane % x->c, turns == 3 ? x->h - 1 : 0);
    char *dst = lm_row_of(y, plane / x->c, plane % x->c, turns == 3 ? first : first + rows - 1);
    int64_t column = turns == 3 ? first : x->w - first - rows;
    LM_PIXEL_LOOPS(x->dtype)->transpose(dst, (turns == 3 ? y->row : -y->row) / bytes, src + column * bytes,
                                        (turns == 3 ? -x->row : x->row) / bytes, x->h, rows);
  }
}

/* Runs a quarter turn as a transpose that reads its input or writes its output from the other end. */
lm_status lm_run_rotate90(const lm_image_job *job) {
  const lm_planes *x = &job->x, *y = &job->y;
  int64_t turns = (int64_t)job->v[0];
  if (turns % 2 == 0) {
    double both[2] = {turns == 2, turns == 2};
    lm_image_job flip = *job;
    flip.v = both;
    return lm_run_flip(&flip);
  }
  double values = (double)x->n * (double)x->c * (double)x->h * (double)x->w;
  return lm_parallel(x->n * x->c * ((y->h + TASK_ROWS - 1) / TASK_ROWS), values * 0.3, 0, turn_tasks, (void *)job);
}
