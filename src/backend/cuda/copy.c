/* Copies between layouts and dtypes of one device. */
#include "copy.h"

#include "backend/cuda/strided.h"

lm_status lm_cuda_copy(const lm_tensor *src, lm_tensor *dst) {
  void *stream;
  bool same = src->dtype == dst->dtype;
  if (dst->numel == 0) return LM_OK;
  NEED(lm_cuda_enter(dst->device, &stream));
  if (same && lm_same_layout(src, dst)) {
    size_t bytes = lm_nbytes(src);
    if (src->data != dst->data)
      NEED(lm_cuda_check(lm_copy_bytes(dst->data, src->data, bytes, stream), "cudaMemcpyAsync"));
    return LM_OK;
  }
  bool aligned = ((uintptr_t)src->data | (uintptr_t)dst->data) % 16 == 0;
  if (aligned && lm_copy_can_cast(src->dtype, dst->dtype) && lm_same_layout(src, dst))
    return LAUNCH("lm_cast_flat", lm_copy_cast(dst->data, dst->dtype, src->data, src->dtype, dst->numel, stream));
  lm_pointwise_launch launch = {.at = lm_cuda_strided(dst)};
  lm_cuda_strided_add(&launch.at, src, src->stride);
  lm_cuda_strided_order(&launch.at, LM_BY_MEMORY);
  int across = same && launch.at.stride[0][0] == 1 ? lm_cuda_strided_across(&launch.at, 1) : 0;
  if (across) return lm_cuda_transpose(&launch.at, across, stream);
  /* Computes in a type that holds every value of the source; a half NaN's payload may get lost. */
  lm_pointwise_launcher *launcher = src->dtype == LM_F64            ? lm_pointwise_f64_copy
                                    : lm_dtype_is_float(src->dtype) ? lm_pointwise_f32_copy
                                                                    : lm_pointwise_i64_copy;
  return lm_cuda_pointwise_launch("copy", launcher, &launch, dst->device, stream);
}
