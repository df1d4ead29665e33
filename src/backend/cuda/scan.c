/* Runs scans along one dim: cumsum, cumprod, linear_recurrence, logcumsumexp, cummax, cummin. */
#include "scan.h"

#include "backend/cuda/cuda.h"
#include "base/message.h"

lm_status lm_cuda_scan(const lm_scan_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *x = a->x;
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) others[d] = d != a->dim;
  lm_scan_job job = {.kind = (lm_scan_kind)a->kind,
                     .reverse = a->reverse,
                     .x_dtype = x->dtype,
                     .decay_dtype = a->decay ? a->decay->dtype : LM_NO_DTYPE,
                     .out_dtype = out[0]->dtype,
                     .n = x->size[a->dim],
                     .step = {[LM_SCAN_X] = x->stride[a->dim], [LM_SCAN_OUT] = out[0]->stride[a->dim]},
                     .x = x->data,
                     .decay = a->decay ? a->decay->data : NULL,
                     .out = out[0]->data,
                     .indices = out[1] ? (int64_t *)out[1]->data : NULL};
  job.lines = lm_dims_of(x->ndim, x->size, others, LM_SCAN_SIDES, (const int64_t *[]){x->stride, out[0]->stride}, true);
  job.columns = job.lines.ndim > 0 && job.lines.stride[LM_SCAN_X][job.lines.ndim - 1] < x->stride[a->dim];
  /* Few and long lines are cut into parts: for two blocks a processor, each of at least FEW chunks, or for all threads
   * that a processor holds, each of at least COLUMN elements. */
  enum { FEW = 4, COLUMN = 64, THREADS = 2048 };
  int64_t lines = lm_dims_numel(&job.lines), most = job.n / (job.columns ? COLUMN : FEW * LM_SCAN_CHUNK);
  int64_t parts = lines == 0 ? 1 : (job.columns ? THREADS : 2) * lm_cuda_facts_of(x->device)->processors / lines;
  job.parts = (int)(parts < most ? parts : most);
  if (job.parts < 1) job.parts = 1;
  if (!job.columns && lines > INT32_MAX) /* a line takes a block, and a grid has fewer than 2^31 */
    return lm_fail_int(lm_op_running(), "the number of lines", "at most 2^31 - 1 on CUDA", lines);
  size_t bytes = job.parts > 1 ? (size_t)(lines * job.parts) * LM_SCAN_STATE : 0;
  NEED(lm_cuda_take(f, bytes, &job.totals));
  return LAUNCH("lm_scan_run", lm_scan_run(&job, f->stream));
}
