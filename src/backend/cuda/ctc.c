/* Computes the CTC loss and its gradient. The kernels are kernels/ctc.cu. */
#include "ctc.h"

#include "backend/cuda/cuda.h"

static lm_ctc_job describe_ctc(const lm_ctc_nll_args *a, const lm_tensor *loss, const lm_tensor *alpha) {
  return (lm_ctc_job){.dtype = a->x->dtype,
                      .bad_label = LM_BAD_LABEL,
                      .bad_length = LM_BAD_INDEX,
                      .times = a->x->size[0],
                      .samples = a->x->size[1],
                      .classes = a->x->size[2],
                      .states = alpha->size[2],
                      .blank = a->blank - 1,
                      .labels = a->target->size[0],
                      .target = (const int64_t *)a->target->data,
                      .starts = (const int64_t *)a->starts->data,
                      .input_lengths = (const int64_t *)a->input_lengths->data,
                      .target_lengths = (const int64_t *)a->target_lengths->data,
                      .x = a->x->data,
                      .loss = loss->data,
                      .alpha = alpha->data};
}

lm_status lm_cuda_ctc_nll(const lm_ctc_nll_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_ctc_job job = describe_ctc(a, out[0], out[1]);
  NEED(lm_cuda_bad(f->device, &job.bad));
  return LAUNCH("ctc_forward", lm_k_ctc_forward(&job, f->stream));
}

lm_status lm_cuda_ctc_nll_backward(const lm_ctc_nll_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_ctc_nll_args forward = {.x = a->x,
                                   .target = a->target,
                                   .starts = a->starts,
                                   .input_lengths = a->input_lengths,
                                   .target_lengths = a->target_lengths,
                                   .blank = a->blank};
  lm_ctc_job job = describe_ctc(&forward, a->loss, a->log_alpha);
  NEED(lm_cuda_bad(f->device, &job.bad));
  NEED(lm_cuda_take(f, (size_t)(job.samples * 2 * job.states) * sizeof(double), &job.beta));
  job.grad = a->grad->data;
  job.dx = out[0]->data;
  return LAUNCH("ctc_backward", lm_k_ctc_backward(&job, f->stream));
}
