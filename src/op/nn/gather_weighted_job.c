/* Converts gather_weighted and its two gradients to one job, which computes one of x, y and weight. */
#include "op/nn/gather_weighted_job.h"

#include "op_args_resampling.h"
#include "op_ids.h"

lm_gather_weighted_job lm_gather_weighted_job_of(lm_op_id op, const void *args, lm_tensor *const *out) {
  const lm_tensor *x, *y, *weight, *indices;
  if (op == LM_OP_gather_weighted) {
    const lm_gather_weighted_args *a = args;
    x = a->x, y = out[0], weight = a->weight, indices = a->indices;
  } else if (op == LM_OP_gather_weighted_input) {
    const lm_gather_weighted_input_args *a = args;
    x = out[0], y = a->grad, weight = a->weight, indices = a->indices;
  } else {
    const lm_gather_weighted_weight_args *a = args;
    x = a->x, y = a->grad, weight = out[0], indices = a->indices;
  }
  const int64_t j = indices->size[1], p = indices->size[2];
  return (lm_gather_weighted_job){.dtype = x->dtype,
                                  .n = x->size[0],
                                  .c = x->size[1],
                                  .m = x->size[2],
                                  .i = x->size[3],
                                  .j = j,
                                  .p = p,
                                  .indices_step = indices->size[0] > 1 ? j * p : 0,
                                  .weight_step = weight && weight->size[0] > 1 ? j * p : 0,
                                  .x = x->data,
                                  .y = y->data,
                                  .weight = weight ? weight->data : NULL,
                                  .indices = (const int64_t *)indices->data};
}
