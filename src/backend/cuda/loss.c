/* Computes negative log-likelihood and cross entropy. The first takes x and its gradient as [N, C, S] with any strides,
 * target as int64 [N, S]. */
#include "loss.h"

#include "backend/cuda/reduce_plan.h"

/* Sets the fields of both directions; x: the values or the gradient. */
static lm_status describe_nll(lm_nll_job *job, const lm_tensor *x, const lm_tensor *target, const lm_tensor *weight,
                              int64_t ignore, lm_reduction reduction) {
  *job = (lm_nll_job){.label = (const int64_t *)target->data,
                      .weight = weight ? weight->data : NULL,
                      .weight_dtype = weight ? weight->dtype : LM_NO_DTYPE,
                      .dtype = x->dtype,
                      .ignore = ignore,
                      .images = x->size[0],
                      .classes = x->size[1],
                      .inner = x->ndim > 2 ? x->size[2] : 1,
                      .stride = {x->stride[0], x->stride[1], x->ndim > 2 ? x->stride[2] : 0},
                      .reduction = reduction == LM_NONE   ? LM_NLL_NONE
                                   : reduction == LM_MEAN ? LM_NLL_MEAN
                                                          : LM_NLL_SUM,
                      .bad_kind = LM_BAD_LABEL};
  return lm_cuda_bad(x->device, &job->bad);
}

lm_status lm_cuda_nll_loss(const lm_nll_loss_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  enum { EACH = 4 }; /* labels of a thread before another block is added */
  lm_nll_job job;
  void *partial;
  NEED(describe_nll(&job, a->x, a->target, a->weight, a->ignore_index, a->reduction));
  job.x = a->x->data;
  job.out = out[0]->data;
  job.total = out[1]->data;
  job.total_dtype = out[1]->dtype;
  int64_t parts = job.images * job.inner / (LM_NLL_BLOCK * EACH), most = 8 * lm_cuda_facts_of(f->device)->processors;
  job.parts = (int)(parts < 1 ? 1 : parts < most ? parts : most);
  NEED(lm_cuda_take(f, job.parts > 1 ? (size_t)job.parts * 2 * sizeof(double) : 0, &partial));
  job.partial = partial;
  return LAUNCH("lm_nll_forward", lm_nll_forward(&job, f->stream));
}

lm_status lm_cuda_nll_loss_backward(const lm_nll_loss_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_nll_job job;
  NEED(describe_nll(&job, out[0], a->target, a->weight, a->ignore_index, a->reduction));
  job.grad = a->grad->data;
  job.total = a->total->data;
  job.total_dtype = a->total->dtype;
  job.dx = out[0]->data;
  return LAUNCH("lm_nll_backward", lm_nll_backward(&job, f->stream));
}

/* ---- cross entropy of rows */

/* Sets the fields of both directions: x [N, C] of any strides. Lanes have four packs each in long rows. */
static lm_status set_entropy(lm_entropy_job *job, const lm_tensor *x, const lm_tensor *target, const lm_tensor *weight,
                             int64_t ignore, double smoothing, lm_reduction reduction, const lm_tensor *stats) {
  int64_t packs = x->size[1] * (int64_t)lm_dtype_size(x->dtype) / 64 + 1;
  *job = (lm_entropy_job){.x_dtype = x->dtype, .smoothing = smoothing, .stats = stats->data};
  NEED(describe_nll(&job->nll, x, target, weight, ignore, reduction));
  job->nll.dtype = stats->dtype;
  job->nll.x = x->data;
  job->nll.bad.op = LM_OP_cross_entropy;
  job->lanes = lm_cuda_power(packs, LM_ENTROPY_BLOCK);
  job->threads = job->lanes > 32 ? job->lanes : LM_NLL_BLOCK; /* a warp or less, or a block for each row */
  return LM_OK;
}

/* Blocks for the rows, at most `most` for each multiprocessor; a block takes at least `each` elements. */
static int blocks_of(const lm_entropy_job *job, int64_t each, int most, lm_device device) {
  int64_t rows = job->threads / job->lanes, few = each / (job->nll.classes + 1);
  int64_t blocks = lm_ceil_div(job->nll.images, rows > few ? rows : few);
  int64_t limit = (int64_t)most * lm_cuda_facts_of(device)->processors;
  return (int)(blocks < 1 ? 1 : blocks < limit ? blocks : limit);
}

lm_status lm_cuda_cross_entropy_rows(const lm_cross_entropy_rows_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_entropy_job job;
  void *partial;
  NEED(set_entropy(&job, a->x, a->target, a->weight, a->ignore_index, a->label_smoothing, a->reduction, out[1]));
  job.nll.out = out[0]->data;
  job.nll.total = out[2]->data;
  job.nll.total_dtype = out[2]->dtype;
  job.nll.parts = blocks_of(&job, 16384, 8, f->device);
  NEED(lm_cuda_take(f, job.nll.parts > 1 ? (size_t)job.nll.parts * 2 * sizeof(double) : 0, &partial));
  job.nll.partial = partial;
  return LAUNCH("lm_entropy_forward", lm_entropy_forward(&job, f->stream));
}

lm_status lm_cuda_cross_entropy_rows_backward(const lm_cross_entropy_rows_backward_args *a, lm_tensor *const *out,
                                              lm_cuda_frame *f) {
  lm_entropy_job job;
  NEED(set_entropy(&job, a->x, a->target, a->weight, a->ignore_index, a->label_smoothing, a->reduction, a->stats));
  job.nll.grad = a->grad->data;
  job.nll.total = a->total->data;
  job.nll.total_dtype = a->total->dtype;
  job.nll.dx = out[0]->data;
  job.nll.parts = blocks_of(&job, 0, 32, f->device);
  return LAUNCH("lm_entropy_backward", lm_entropy_backward(&job, f->stream));
}
