/* Weighted sums of elements and their gradients. The kernels are kernels/gather_weighted.cu. */
#include "gather_weighted.h"

#include "backend/cuda/cuda.h"
#include "op/nn/gather_weighted.h"

static lm_gather_weighted_job job_of(const lm_gather_weighted_call *s) {
  return (lm_gather_weighted_job){.dtype = s->x->dtype,
                                  .n = s->n,
                                  .c = s->c,
                                  .m = s->m,
                                  .i = s->i,
                                  .j = s->j,
                                  .p = s->p,
                                  .indices_step = s->indices_step,
                                  .weight_step = s->weight_step,
                                  .x = s->x->data,
                                  .y = s->y->data,
                                  .weight = s->weight ? s->weight->data : NULL,
                                  .indices = s->indices};
}

lm_status lm_cuda_gather_weighted(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream;
  lm_gather_weighted_call s = lm_gather_weighted_call_of(LM_OP_gather_weighted, args, out);
  lm_gather_weighted_job job = job_of(&s);
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(LAUNCH("sample_forward", lm_k_gather_weighted_forward(&job, stream)));
done:
  return status;
}

lm_status lm_cuda_gather_weighted_input(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream, *sums = NULL;
  lm_gather_weighted_call s = lm_gather_weighted_call_of(LM_OP_gather_weighted_input, args, out);
  lm_gather_weighted_job job = job_of(&s);
  size_t bytes = lm_dtype_size(out[0]->dtype) < sizeof(float) ? (size_t)out[0]->numel * sizeof(float) : 0;
  TRY(lm_cuda_enter(out[0]->device, &stream));
  if (bytes) TRY(lm_cuda_scratch(out[0]->device, bytes, &sums));
  TRY(LAUNCH("sample_input", lm_k_gather_weighted_input(&job, sums, stream)));
done:
  if (sums) lm_cuda_scratch_done(out[0]->device, sums, bytes);
  return status;
}

lm_status lm_cuda_gather_weighted_weight(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream;
  lm_gather_weighted_call s = lm_gather_weighted_call_of(LM_OP_gather_weighted_weight, args, out);
  lm_gather_weighted_job job = job_of(&s);
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(LAUNCH("sample_weight", lm_k_gather_weighted_weight(&job, stream)));
done:
  return status;
}
