/* Reductions to numbers: sum, nansum, prod, mean, var, norm, logsumexp, amax, amin, all, any. Dtypes were checked by
 * op/reduce.c. */
#include "reduce.h"

#include <math.h>

#include "backend/cuda/reduce_plan.h"

static lm_status reduce(lm_reduce_job job, const lm_tensor *x, const lm_ints *dims, const lm_tensor *out) {
  bool reduced[LM_MAX_DIMS] = {false};
  for (int i = 0; i < dims->n; i++) reduced[dims->v[i]] = true;
  return lm_cuda_fold(&job, x, out, reduced);
}

lm_status lm_cuda_sum(const void *args, lm_tensor *const *out) {
  const lm_sum_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_SUM}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_nansum(const void *args, lm_tensor *const *out) {
  const lm_nansum_args *a = args;
  bool floating = lm_dtype_is_float(a->x->dtype);
  return reduce((lm_reduce_job){.kind = floating ? LM_REDUCE_NUMBERS : LM_REDUCE_SUM}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_prod(const void *args, lm_tensor *const *out) {
  const lm_prod_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_PRODUCT}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_mean(const void *args, lm_tensor *const *out) {
  const lm_mean_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_SUM, .finish = LM_FINISH_MEAN}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_var(const void *args, lm_tensor *const *out) {
  const lm_var_args *a = args;
  lm_reduce_job job = {.kind = LM_REDUCE_DEVIATION, .finish = LM_FINISH_VARIANCE, .correction = (double)a->correction};
  return reduce(job, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_norm(const void *args, lm_tensor *const *out) {
  const lm_norm_args *a = args;
  lm_reduce_job job = {.p = a->p};
  job.kind = a->p == 0           ? LM_REDUCE_NONZERO
             : a->p == 1         ? LM_REDUCE_ABS
             : a->p == 2         ? LM_REDUCE_SQUARE
             : a->p == INFINITY  ? LM_REDUCE_ABS_MAX
             : a->p == -INFINITY ? LM_REDUCE_ABS_MIN
                                 : LM_REDUCE_POWER;
  if (a->p == 2) job.finish = LM_FINISH_ROOT;
  return reduce(job, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_logsumexp(const void *args, lm_tensor *const *out) {
  const lm_logsumexp_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_LOGSUMEXP}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_amax(const void *args, lm_tensor *const *out) {
  const lm_amax_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_MAX}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_amin(const void *args, lm_tensor *const *out) {
  const lm_amin_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_MIN}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_all(const void *args, lm_tensor *const *out) {
  const lm_all_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_NONZERO, .finish = LM_FINISH_ALL}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_count_nonzero(const void *args, lm_tensor *const *out) {
  const lm_count_nonzero_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_NONZERO}, a->x, &a->dim, out[0]);
}

lm_status lm_cuda_any(const void *args, lm_tensor *const *out) {
  const lm_any_args *a = args;
  return reduce((lm_reduce_job){.kind = LM_REDUCE_NONZERO}, a->x, &a->dim, out[0]);
}
