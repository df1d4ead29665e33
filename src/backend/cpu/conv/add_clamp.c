/* Adds another tensor to a convolution's results and limits the sum, while they are in the cache. */
#include "backend/cpu/isa/add_clamp.h"

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"

void lm_conv_add_clamp(const lm_conv_job *job, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const struct lm_add_clamp_loops *loops = LM_ISA_PICK(lm_add_clamp_loops);
  const int64_t k = job->shape.k;
  if (columns == k) columns *= rows, rows = 1;
  for (int64_t r = row; r < row + rows; r++) {
    const int64_t at = r * k + column;
    loops->run((float *)job->y + at, job->other ? job->other + at : NULL, columns, job->low, job->high);
  }
}

enum { ROWS = 64 };

static void finish_rows(void *ctx, int64_t first, int64_t last) {
  const lm_conv_job *job = ctx;
  const int64_t end = lm_min(last * ROWS, job->shape.n * job->shape.oh * job->shape.ow);
  lm_conv_add_clamp(job, first * ROWS, end - first * ROWS, 0, job->shape.k);
}

lm_status lm_conv_add_clamp_all(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t rows = s->n * s->oh * s->ow;
  return lm_parallel(lm_ceil_div(rows, ROWS), (double)(rows * s->k) / 8, 0, finish_rows, (void *)job);
}
