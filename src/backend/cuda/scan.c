/* Scans along one dim: cumsum, cumprod, linear_recurrence, logcumsumexp, cummax, cummin. */
#include "scan.h"

#include "backend/cuda/cuda.h"

static lm_status scan_along(lm_scan_kind kind, const lm_tensor *x, const lm_tensor *decay, int64_t dim, bool reverse,
                            lm_tensor *const *out, int outs) {
  lm_status status = LM_OK;
  void *stream;
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) others[d] = d != dim;
  lm_scan_job job = {.kind = kind,
                     .reverse = reverse,
                     .x_dtype = x->dtype,
                     .decay_dtype = decay ? decay->dtype : LM_NO_DTYPE,
                     .out_dtype = out[0]->dtype,
                     .n = x->size[dim],
                     .step = {[LM_SCAN_X] = x->stride[dim], [LM_SCAN_OUT] = out[0]->stride[dim]},
                     .x = x->data,
                     .decay = decay ? decay->data : NULL,
                     .out = out[0]->data,
                     .indices = outs == 2 ? (int64_t *)out[1]->data : NULL};
  job.lines = lm_dims_of(x->ndim, x->size, others, LM_SCAN_SIDES, (const int64_t *[]){x->stride, out[0]->stride}, true);
  job.columns = job.lines.ndim > 0 && job.lines.stride[LM_SCAN_X][job.lines.ndim - 1] < x->stride[dim];
  TRY(lm_cuda_enter(x->device, &stream));
  TRY(LAUNCH("lm_scan_run", lm_scan_run(&job, stream)));
done:
  return status;
}

lm_status lm_cuda_cumsum(const void *args, lm_tensor *const *out) {
  const lm_cumsum_args *a = args;
  return scan_along(LM_SCAN_SUM, a->x, NULL, a->dim, a->reverse, out, 1);
}

lm_status lm_cuda_cumprod(const void *args, lm_tensor *const *out) {
  const lm_cumprod_args *a = args;
  return scan_along(LM_SCAN_PRODUCT, a->x, NULL, a->dim, a->reverse, out, 1);
}

lm_status lm_cuda_linear_recurrence(const void *args, lm_tensor *const *out) {
  const lm_linear_recurrence_args *a = args;
  return scan_along(LM_SCAN_RECURRENCE, a->x, a->decay, a->dim, a->reverse, out, 1);
}

lm_status lm_cuda_logcumsumexp(const void *args, lm_tensor *const *out) {
  const lm_logcumsumexp_args *a = args;
  return scan_along(LM_SCAN_LOGSUMEXP, a->x, NULL, a->dim, a->reverse, out, 1);
}

lm_status lm_cuda_cummax(const void *args, lm_tensor *const *out) {
  const lm_cummax_args *a = args;
  return scan_along(LM_SCAN_MAX, a->x, NULL, a->dim, false, out, 2);
}

lm_status lm_cuda_cummin(const void *args, lm_tensor *const *out) {
  const lm_cummin_args *a = args;
  return scan_along(LM_SCAN_MIN, a->x, NULL, a->dim, false, out, 2);
}
