/* Where extremes are, along one dim: max_dim, min_dim, argmax, argmin. */
#include "backend/cuda/reduce_plan.h"

/* values: NULL where only indices are requested; laid out like them. */
static lm_status search(lm_reduce_kind kind, const lm_tensor *x, int64_t dim, const lm_tensor *values,
                        const lm_tensor *indices) {
  bool reduced[LM_MAX_DIMS] = {false};
  reduced[dim] = true;
  lm_reduce_job job = {.kind = kind,
                       .out = values ? values->data : NULL,
                       .out_dtype = values ? values->dtype : LM_NO_DTYPE,
                       .position = (int64_t *)indices->data};
  return lm_cuda_fold(&job, x, indices, reduced);
}

lm_status lm_cuda_max_dim(const void *args, lm_tensor *const *out) {
  const lm_max_dim_args *a = args;
  return search(LM_REDUCE_ARGMAX, a->x, a->dim, out[0], out[1]);
}

lm_status lm_cuda_min_dim(const void *args, lm_tensor *const *out) {
  const lm_min_dim_args *a = args;
  return search(LM_REDUCE_ARGMIN, a->x, a->dim, out[0], out[1]);
}

lm_status lm_cuda_argmax(const void *args, lm_tensor *const *out) {
  const lm_argmax_args *a = args;
  return search(LM_REDUCE_ARGMAX, a->x, a->dim, NULL, out[0]);
}

lm_status lm_cuda_argmin(const void *args, lm_tensor *const *out) {
  const lm_argmin_args *a = args;
  return search(LM_REDUCE_ARGMIN, a->x, a->dim, NULL, out[0]);
}
