/* Negative log-likelihood. x and its gradient come as [N, C, S] with any strides, target as int64 [N, S]. */
#include "loss.h"

#include "backend/cuda/cuda.h"

/* What both directions share; x: the values or the gradient. */
static lm_status job_of(lm_nll_job *job, const lm_tensor *x, const lm_tensor *target, const lm_tensor *weight,
                        int64_t ignore, lm_reduction reduction) {
  *job = (lm_nll_job){.label = (const int64_t *)target->data,
                      .weight = weight ? weight->data : NULL,
                      .weight_dtype = weight ? weight->dtype : LM_NO_DTYPE,
                      .dtype = x->dtype,
                      .ignore = ignore,
                      .images = x->size[0],
                      .classes = x->size[1],
                      .inner = x->size[2],
                      .stride = {x->stride[0], x->stride[1], x->stride[2]},
                      .reduction = reduction == LM_NONE   ? LM_NLL_NONE
                                   : reduction == LM_MEAN ? LM_NLL_MEAN
                                                          : LM_NLL_SUM,
                      .bad_kind = LM_BAD_LABEL};
  return lm_cuda_bad(x->device, &job->bad);
}

lm_status lm_cuda_nll_loss(const void *args, lm_tensor *const *out, lm_cuda_frame *f) {
  enum { EACH = 4 }; /* labels a thread takes before there is another block */
  const lm_nll_loss_args *a = args;
  lm_status status = LM_OK;
  lm_nll_job job;
  void *partial;
  TRY(job_of(&job, a->x, a->target, a->weight, a->ignore_index, a->reduction));
  job.x = a->x->data;
  job.out = out[0]->data;
  job.total = out[1]->data;
  job.total_dtype = out[1]->dtype;
  int64_t parts = job.images * job.inner / (LM_NLL_BLOCK * EACH), most = 8 * lm_cuda_facts_of(f->device)->processors;
  job.parts = (int)(parts < 1 ? 1 : parts < most ? parts : most);
  TRY(lm_cuda_take(f, job.parts > 1 ? (size_t)job.parts * 2 * sizeof(double) : 0, &partial));
  job.partial = partial;
  TRY(LAUNCH("lm_nll_forward", lm_nll_forward(&job, f->stream)));
done:
  return status;
}

lm_status lm_cuda_nll_loss_backward(const void *args, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_nll_loss_backward_args *a = args;
  lm_status status = LM_OK;
  lm_nll_job job;
  TRY(job_of(&job, out[0], a->target, a->weight, a->ignore_index, a->reduction));
  job.grad = a->grad->data;
  job.total = a->total->data;
  job.total_dtype = a->total->dtype;
  job.dx = out[0]->data;
  TRY(LAUNCH("lm_nll_backward", lm_nll_backward(&job, f->stream)));
done:
  return status;
}
