/* grid_sample and its gradients. The kernels are kernels/grid_sample.cu. */
#include "grid_sample.h"

#include "backend/cuda/cuda.h"
#include "op/nn/grid_sample.h"

lm_status lm_cuda_grid_sample(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream;
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample, args, out);
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(LAUNCH("grid_forward", lm_k_grid_forward(&s, stream)));
done:
  return status;
}

lm_status lm_cuda_grid_sample_input(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream, *sums = NULL;
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample_input, args, out);
  size_t bytes = lm_dtype_size(out[0]->dtype) < sizeof(float) ? (size_t)out[0]->numel * sizeof(float) : 0;
  TRY(lm_cuda_enter(out[0]->device, &stream));
  if (bytes) TRY(lm_cuda_scratch(out[0]->device, bytes, &sums));
  TRY(LAUNCH("grid_input", lm_k_grid_input(&s, sums, stream)));
done:
  if (sums) lm_cuda_scratch_done(out[0]->device, sums, bytes);
  return status;
}

lm_status lm_cuda_grid_sample_grid(const void *args, lm_tensor *const *out) {
  lm_status status;
  void *stream;
  lm_grid_call s = lm_grid_call_of(LM_OP_grid_sample_grid, args, out);
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(LAUNCH("grid_slopes", lm_k_grid_slopes(&s, stream)));
done:
  return status;
}
