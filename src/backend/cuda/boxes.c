/* Runs roi_pool and nms_sorted. The kernels are kernels/boxes.cu. */
#include "boxes.h"

#include "backend/cuda/cuda.h"

lm_status lm_cuda_roi_pool(const lm_roi_pool_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_roi_job job = {.dtype = a->x->dtype,
                    .bad_kind = LM_BAD_INDEX,
                    .n = a->x->size[0],
                    .c = a->x->size[1],
                    .h = a->x->size[2],
                    .w = a->x->size[3],
                    .k = a->boxes->size[0],
                    .rows = out[0]->size[2],
                    .columns = out[0]->size[3],
                    .scale = a->spatial_scale,
                    .x = a->x->data,
                    .boxes = a->boxes->data,
                    .y = out[0]->data,
                    .indices = (int64_t *)out[1]->data};
  NEED(lm_cuda_bad(f->device, &job.bad));
  return LAUNCH("roi_pool", lm_k_roi_pool(&job, f->stream));
}

lm_status lm_cuda_nms_sorted(const lm_nms_sorted_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  enum { WORD = 64, MOST = 1 << 20 }; /* WORD: boxes in a word of bits; MOST: words at a time, 8 MB */
  int64_t n = a->boxes->size[0], words = lm_ceil_div(n, WORD), most = words > 0 ? MOST / words / WORD : 0;
  int64_t rows = WORD * (most < 1 ? 1 : most < words ? most : words);
  void *gone;
  NEED(lm_cuda_take(f, (size_t)(words * (1 + rows)) * sizeof(uint64_t), &gone));
  return LAUNCH("nms", lm_k_nms(a->boxes->dtype, a->boxes->data, n, a->iou_threshold, rows, gone,
                                (uint8_t *)out[0]->data, f->stream));
}
