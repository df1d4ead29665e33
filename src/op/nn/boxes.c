/* Boxes in images: pooling of their bins, and which of them cover the same. Checks; loops are the backends'. */
#include <math.h>

#include "base/message.h"
#include "op/input_layout.h"

lm_status lm_op_roi_pool(const lm_roi_pool_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_roi_pool;
  lm_status status;
  lm_roi_pool_args run = *a;
  lm_tensor *y = NULL, *indices = NULL;
  run.x = run.boxes = NULL;
  TRY(lm_check_float(op, "x", a->x));
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){a->x, a->boxes}));
  if (a->x->ndim != 4 || a->x->size[2] < 1 || a->x->size[3] < 1 || a->x->numel > INT32_MAX)
    return lm_fail_shape("roi_pool", "x", "[N, C, H, W] of fewer than 2^31 elements", lm_shape_of(a->x));
  if (a->boxes->ndim != 2 || a->boxes->size[1] != 5 || a->boxes->dtype != a->x->dtype)
    return lm_fail_value("roi_pool", "boxes", lm_text("%s [K, 5] as x", lm_dtype_name(a->x->dtype)),
                         lm_text("%s %s", lm_dtype_name(a->boxes->dtype), lm_shape_of(a->boxes)));
  for (int i = 0; i < 2; i++)
    if (a->output_size[i] < 1 || a->output_size[i] > INT32_MAX)
      return lm_fail_int("roi_pool", lm_text("output_size[%d]", i + 1), "from 1 to 2^31 - 1", a->output_size[i]);
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &run.x));
  TRY(lm_to_layout(a->boxes, LM_CONTIGUOUS, &run.boxes));
  const int64_t size[4] = {a->boxes->size[0], a->x->size[1], a->output_size[0], a->output_size[1]};
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, 4, size, LM_CONTIGUOUS, &y));
  TRY(lm_tensor_empty(LM_I64, a->x->device, 4, size, LM_CONTIGUOUS, &indices));
  if (y->numel > 0) TRY(lm_dispatch(op, y->device, &run, (lm_tensor *[]){y, indices}));
  out[0] = lm_retain(y);
  out[1] = lm_retain(indices);
done:
  lm_release(run.x);
  lm_release(run.boxes);
  lm_release(y);
  lm_release(indices);
  return status;
}

lm_status lm_op_nms_sorted(const lm_nms_sorted_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_nms_sorted;
  lm_status status;
  lm_nms_sorted_args run = *a;
  lm_tensor *keep = NULL;
  run.boxes = NULL;
  TRY(lm_check_float(op, "boxes", a->boxes));
  if (a->boxes->ndim != 2 || a->boxes->size[1] != 4 || a->boxes->size[0] > INT32_MAX)
    return lm_fail_shape("nms_sorted", "boxes", "[n, 4]", lm_shape_of(a->boxes));
  if (isnan(a->iou_threshold)) return lm_fail_number("nms_sorted", "iou_threshold", "a number", a->iou_threshold);
  TRY(lm_to_layout(a->boxes, LM_CONTIGUOUS, &run.boxes));
  TRY(lm_tensor_empty(LM_BOOL, a->boxes->device, 1, a->boxes->size, LM_CONTIGUOUS, &keep));
  if (keep->numel > 0) TRY(lm_dispatch(op, keep->device, &run, &keep));
  *out = keep;
  keep = NULL;
done:
  lm_release(run.boxes);
  lm_release(keep);
  return status;
}
