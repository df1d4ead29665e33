/* Computes grid_sample and its gradients. The kernels are kernels/grid_sample.cu. */
#include "grid_sample.h"

#include "backend/cuda/cuda.h"
#include "op/nn/grid_sample.h"

lm_status lm_cuda_grid_sample(const lm_grid_sample_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample, a, out);
  return LAUNCH("grid_forward", lm_k_grid_forward(&s, f->stream));
}

lm_status lm_cuda_grid_sample_input(const lm_grid_sample_input_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  void *sums;
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample_input, a, out);
  NEED(lm_cuda_take_sums(f, out[0], &sums));
  return LAUNCH("grid_input", lm_k_grid_input(&s, sums, f->stream));
}

lm_status lm_cuda_grid_sample_grid(const lm_grid_sample_grid_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample_grid, a, out);
  return LAUNCH("grid_slopes", lm_k_grid_slopes(&s, f->stream));
}
