/* Plans softmax, its logarithm and their gradients along one dim. */
#include "softmax.h"

#include "backend/cuda/reduce_plan.h"

/* Returns true if every line of t is contiguous, aligned to 16 bytes and divisible into packs of 16 bytes. */
static bool is_packed(const lm_tensor *t, int64_t dim) {
  int64_t pack = 16 / (int64_t)lm_dtype_size(t->dtype);
  if ((uintptr_t)t->data % 16 != 0 || t->size[dim] % pack != 0) return false;
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] > 1 && (d == dim ? t->stride[d] != 1 : t->stride[d] % pack != 0)) return false;
  }
  return true;
}

/* Returns the elements in `bytes` bytes of numbers. */
static int64_t held_in(const lm_softmax_job *job, int bytes) { return bytes / (job->dtype == LM_F64 ? 8 : 4); }

static void plan_rows(lm_softmax_job *job) {
  int64_t pack = job->in_packs ? 16 / (int64_t)lm_dtype_size(job->dtype) : 1;
  int64_t held = held_in(job, job->in_packs ? LM_SOFTMAX_ROW : LM_SOFTMAX_LOOSE_ROW);
  if (job->length <= 32 * held) { /* a line takes lanes of a warp, of which each has four packs in long lines */
    job->lanes = lm_cuda_power((job->length + 4 * pack - 1) / (4 * pack), 32);
    job->threads = LM_REDUCE_BLOCK;
  } else { /* a line takes a block */
    job->lanes = 2 * lm_cuda_power((job->length + 2 * held - 1) / (2 * held), LM_SOFTMAX_MAX_BLOCK / 2);
    job->threads = job->lanes;
  }
}

static void plan_cols(lm_softmax_job *job) {
  int64_t held = held_in(job, LM_SOFTMAX_COL);
  int rows = lm_cuda_power(lm_ceil_div(job->length, held), LM_SOFTMAX_MAX_BLOCK);
  int lanes = lm_cuda_power(job->count, LM_REDUCE_BLOCK);
  while (lanes > 32 && lanes * rows > LM_REDUCE_BLOCK) lanes /= 2;
  while (lanes * rows > LM_SOFTMAX_MAX_BLOCK) rows /= 2;
  job->lanes = lanes;
  job->threads = lanes * rows;
}

lm_status lm_cuda_softmax_along(const lm_softmax_along_args *a, lm_tensor *const *outs, lm_cuda_frame *f) {
  const lm_tensor *x = a->x, *y = a->y, *out = outs[0];
  const int64_t dim = a->dim;
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < out->ndim; d++) others[d] = d != dim;
  lm_softmax_job job = {
      .kind = (lm_softmax_kind)a->kind, .dtype = out->dtype, .out = out->data, .x = x->data, .y = y ? y->data : NULL};
  job.lines = lm_dims_of(out->ndim, out->size, others, LM_SOFTMAX_SIDES,
                         (const int64_t *[]){out->stride, x->stride, y ? y->stride : NULL}, true);
  job.length = out->size[dim];
  job.count = lm_dims_numel(&job.lines);
  job.step[LM_SOFTMAX_OUT] = out->stride[dim];
  job.step[LM_SOFTMAX_X] = x->stride[dim];
  job.step[LM_SOFTMAX_Y] = y ? y->stride[dim] : 0;
  if (job.count == 0 || job.length == 0) return LM_OK;
  job.in_packs = is_packed(out, dim) && is_packed(x, dim) && (!y || is_packed(y, dim));
  job.cols = job.lines.ndim > 0 && job.lines.stride[LM_SOFTMAX_OUT][job.lines.ndim - 1] < out->stride[dim];
  if (job.cols) {
    plan_cols(&job);
  } else {
    plan_rows(&job);
  }
  return LAUNCH("lm_softmax_run", lm_softmax_run(&job, f->stream));
}
