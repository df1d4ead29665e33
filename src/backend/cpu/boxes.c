/* Pools the bins of boxes in images (roi_pool), and suppresses boxes that overlap better ones (nms_sorted). */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "base/mem.h"

#define LM_TEMPLATE "backend/cpu/isa/templates/boxes.inc"
#include "backend/cpu/isa/templates/each_float.inc"

typedef int64_t (*roi_loop)(const lm_roi_pool_args *a, lm_tensor *const *out, int64_t from, int64_t to);

typedef struct roi_job {
  const lm_roi_pool_args *a;
  lm_tensor *const *out;
  roi_loop loop;
  _Atomic int64_t bad;
} roi_job;

static void pool_rois(void *ctx, int64_t first, int64_t last) {
  roi_job *j = ctx;
  int64_t bad = j->loop(j->a, j->out, first, last);
  if (bad != 0) lm_note_least(&j->bad, bad);
}

lm_status lm_cpu_roi_pool(const void *args, lm_tensor *const *out) {
  static const roi_loop loops[LM_DTYPE_COUNT] = {LM_FLOATS(roi)};
  const lm_roi_pool_args *a = args;
  roi_job job = {.a = a, .out = out, .loop = loops[a->x->dtype], .bad = INT64_MAX};
  lm_parallel(out[0]->size[0] * out[0]->size[1], (double)out[0]->numel * 16, 0, pool_rois, &job);
  if (job.bad == INT64_MAX) return LM_OK;
  return lm_fail(LM_E_INDEX, "roi_pool: boxes[%lld, 1] is out of range for x's %lld images (indices start at 1)",
                 (long long)job.bad, (long long)a->x->size[0]);
}

lm_status lm_cpu_nms_sorted(const void *args, lm_tensor *const *out) {
  const lm_nms_sorted_args *a = args;
  int64_t n = a->boxes->size[0];
  void *side = lm_malloc((size_t)(5 * n) * sizeof(double));
  if (!side) return LM_E_OOM;
  uint8_t *keep = (uint8_t *)out[0]->data;
#define NMS(id) \
  case LM_##id: nms_##id((const lm_elem_##id *)a->boxes->data, n, (lm_acc_##id)a->iou_threshold, side, keep); break;
  switch (a->boxes->dtype) {
    NMS(F16)
    NMS(BF16)
    NMS(F32)
    NMS(F64)
    default: break;
  }
#undef NMS
  lm_free(side);
  return LM_OK;
}
