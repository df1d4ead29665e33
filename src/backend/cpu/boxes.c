/* Pools the bins of boxes in images (roi_pool), and suppresses boxes that overlap better ones (nms_sorted). */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "backend/cpu/memory.h"
#include "op_args_indexing.h"
#include "op_args_ordering.h"
#include "op_args_resampling.h"

typedef struct roi_job {
  const lm_roi_pool_args *a;
  lm_tensor *const *out;
  _Atomic int64_t bad; /* number, from 1, of the first box whose image does not exist */
} roi_job;

#define LM_TEMPLATE "backend/cpu/isa/templates/boxes.inc"
#include "backend/cpu/isa/templates/each_float.inc"

lm_status lm_cpu_roi_pool(const lm_roi_pool_args *a, lm_tensor *const *out) {
  static lm_parallel_fn *const loops[LM_DTYPE_COUNT] = {LM_FLOATS(roi)};
  roi_job job = {.a = a, .out = out, .bad = INT64_MAX};
  lm_parallel(out[0]->size[0] * out[0]->size[1], (double)out[0]->numel * 16, 0, loops[a->x->dtype], &job);
  if (job.bad == INT64_MAX) return LM_OK;
  return lm_fail(LM_E_INDEX, "roi_pool: boxes[%lld, 1] is out of range for x's %lld images (indices start at 1)",
                 (long long)job.bad, (long long)a->x->size[0]);
}

lm_status lm_cpu_nms_sorted(const lm_nms_sorted_args *a, lm_tensor *const *out) {
  static void (*const loops[LM_DTYPE_COUNT])(const void *, int64_t, double, const int64_t *, double *,
                                             uint8_t *) = {LM_FLOATS(nms)};
  const lm_tensor *boxes = a->boxes;
  const int64_t n = boxes->size[0];
  LM_OWNED *left = NULL, *sorted = NULL, *order = NULL;
  LM_WORKSPACE(double, scratch, 8 * n);
  NEED(lm_tensor_view(a->boxes, 1, &n, &(int64_t){4}, 0, &left));
  NEED(lm_tensor_empty(boxes->dtype, boxes->device, 1, &n, LM_CONTIGUOUS, &sorted));
  NEED(lm_tensor_empty(LM_I64, boxes->device, 1, &n, LM_CONTIGUOUS, &order));
  NEED(lm_cpu_topk(&(lm_topk_args){.x = left, .k = n}, (lm_tensor *[]){sorted, order}));
  loops[boxes->dtype](boxes->data, n, a->iou_threshold, (const int64_t *)order->data, scratch, (uint8_t *)out[0]->data);
  return LM_OK;
}
