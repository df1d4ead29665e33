/* Reduces to numbers, and finds extremes along one dim. op/reduce.c has checked dtypes. */
#include "reduce.h"

#include "backend/cuda/reduce_plan.h"

static const struct fold {
  lm_reduce_kind kind;
  lm_reduce_finish finish;
} folds[] = {
    [LM_STATISTIC_SUM] = {LM_REDUCE_SUM, LM_FINISH_NONE},
    [LM_STATISTIC_NANSUM] = {LM_REDUCE_NUMBERS, LM_FINISH_NONE},
    [LM_STATISTIC_PROD] = {LM_REDUCE_PRODUCT, LM_FINISH_NONE},
    [LM_STATISTIC_MEAN] = {LM_REDUCE_SUM, LM_FINISH_MEAN},
    [LM_STATISTIC_VAR] = {LM_REDUCE_DEVIATION, LM_FINISH_VARIANCE},
    [LM_STATISTIC_LOGSUMEXP] = {LM_REDUCE_LOGSUMEXP, LM_FINISH_NONE},
    [LM_STATISTIC_AMAX] = {LM_REDUCE_MAX, LM_FINISH_NONE},
    [LM_STATISTIC_AMIN] = {LM_REDUCE_MIN, LM_FINISH_NONE},
    [LM_STATISTIC_ALL] = {LM_REDUCE_NONZERO, LM_FINISH_ALL},
    [LM_STATISTIC_ANY] = {LM_REDUCE_NONZERO, LM_FINISH_NONE},
    [LM_STATISTIC_COUNT_NONZERO] = {LM_REDUCE_NONZERO, LM_FINISH_NONE},
};

lm_status lm_cuda_reduce(const lm_reduce_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  bool reduced[LM_MAX_DIMS] = {false};
  for (int i = 0; i < a->dim.n; i++) reduced[a->dim.v[i]] = true;
  struct fold fold = folds[a->statistic];
  if (a->statistic == LM_STATISTIC_NORM) {
    fold.kind = lm_reduce_norm_kind(a->parameter);
    if (fold.kind == LM_REDUCE_SQUARE) fold.finish = LM_FINISH_ROOT;
  }
  if (fold.kind == LM_REDUCE_NUMBERS && !lm_dtype_is_float(a->x->dtype)) fold.kind = LM_REDUCE_SUM;
  lm_reduce_job job = {.kind = fold.kind, .finish = fold.finish, .p = a->parameter, .correction = a->parameter};
  return lm_cuda_fold(f, &job, a->x, out[0], reduced);
}

lm_status lm_cuda_extreme_along(const lm_extreme_along_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *indices = out[0], *values = out[1]; /* laid out alike; values may be NULL */
  bool reduced[LM_MAX_DIMS] = {false};
  reduced[a->dim] = true;
  lm_reduce_job job = {.kind = a->largest ? LM_REDUCE_ARGMAX : LM_REDUCE_ARGMIN,
                       .out = values ? values->data : NULL,
                       .out_dtype = values ? values->dtype : LM_NO_DTYPE,
                       .position = (int64_t *)indices->data};
  return lm_cuda_fold(f, &job, a->x, indices, reduced);
}
