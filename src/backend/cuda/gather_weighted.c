/* Computes weighted sums of elements and their gradients. The kernels are kernels/gather_weighted.cu. */
#include "op/nn/gather_weighted_job.h"

#include "backend/cuda/cuda.h"

lm_status lm_cuda_gather_weighted(const lm_gather_weighted_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_gather_weighted_job job = lm_gather_weighted_job_of(LM_OP_gather_weighted, a, out);
  return LAUNCH("sample_forward", lm_k_gather_weighted_forward(&job, f->stream));
}

lm_status lm_cuda_gather_weighted_input(const lm_gather_weighted_input_args *a, lm_tensor *const *out,
                                        lm_cuda_frame *f) {
  void *sums;
  lm_gather_weighted_job job = lm_gather_weighted_job_of(LM_OP_gather_weighted_input, a, out);
  NEED(lm_cuda_take_sums(f, out[0], &sums));
  return LAUNCH("sample_input", lm_k_gather_weighted_input(&job, sums, f->stream));
}

lm_status lm_cuda_gather_weighted_weight(const lm_gather_weighted_weight_args *a, lm_tensor *const *out,
                                         lm_cuda_frame *f) {
  lm_gather_weighted_job job = lm_gather_weighted_job_of(LM_OP_gather_weighted_weight, a, out);
  return LAUNCH("sample_weight", lm_k_gather_weighted_weight(&job, f->stream));
}
