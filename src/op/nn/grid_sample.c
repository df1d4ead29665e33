/* Converts grid_sample and its two gradients to one call, and checks grids. */
#include "op/nn/grid_sample.h"

#include "base/message.h"
#include "op/operand_checks.h"

enum { ORDERS = 4 }; /* number of orders of derivatives along each dim */

lm_grid_call lm_grid_call_of(lm_op_id op, const void *args, lm_tensor *const *out) {
  const lm_grid_sample_args *a = args;
  lm_grid_sample_args how = {0};
  const lm_tensor *y = out[0], *slopes = NULL;
  if (op == LM_OP_grid_sample) {
    how = *a;
  } else if (op == LM_OP_grid_sample_input) {
    const lm_grid_sample_input_args *b = args;
    how = (lm_grid_sample_args){out[0], b->grid, b->mode, b->padding_mode, b->align_corners, b->order};
    y = b->grad;
  } else {
    const lm_grid_sample_grid_args *b = args;
    how = (lm_grid_sample_args){b->x, b->grid, b->mode, b->padding_mode, b->align_corners, b->order};
    y = b->grad, slopes = out[0];
  }
  const lm_tensor *x = how.x;
  lm_grid_call s = {.dtype = x->dtype,
                    .dims = x->ndim - 2,
                    .taps = lm_grid_taps(how.mode),
                    .last = lm_format_of(x) == LM_CHANNELS_LAST,
                    .n = x->size[0],
                    .c = x->size[1],
                    .m = 1,
                    .p = 1,
                    .x = x->data,
                    .y = y->data,
                    .grid = how.grid->data,
                    .slopes = slopes ? slopes->data : NULL};
  for (int k = 0; k < s.dims; k++, how.order /= ORDERS) {
    int64_t size = x->size[x->ndim - 1 - k];
    s.line[k] = (lm_grid_line){(int32_t)size, how.mode, how.padding_mode, how.align_corners, (int)(how.order % ORDERS)};
    s.step[k] = (int32_t)s.m;
    s.m *= size;
    s.p *= how.grid->size[1 + k];
  }
  return s;
}

lm_status lm_check_grid(lm_op_id op, const lm_ints *from, const lm_tensor *grid, int64_t order, int highest) {
  const char *name = lm_ops[op].name;
  const int dims = from->n;
  int64_t pixels = 1;
  if (dims != 2 && dims != 3) return lm_fail_int(name, "the number of dims of x", "4 or 5", dims + 2);
  if (grid->ndim != dims + 2 || grid->size[dims + 1] != dims)
    return lm_fail_shape(
        name, "grid",
        lm_text("[%lld, %s, %d] for %d-d x", (long long)grid->size[0], dims == 2 ? "H, W" : "D, H, W", dims, dims + 2),
        lm_shape_of(grid));
  for (int d = 0; d < dims; d++) {
    if (from->v[d] < 1) return lm_fail_value(name, "sizes of x", "at least 1", lm_shape_text(dims, from->v));
    pixels = from->v[d] > INT32_MAX / pixels ? INT32_MAX + 1LL : pixels * from->v[d];
    if (pixels > INT32_MAX)
      return lm_fail_value(name, "x", "at most 2^31 - 1 pixels an image", lm_shape_text(dims, from->v));
  }
  for (int64_t k = 0, left = order; k < dims || left != 0; k++, left /= ORDERS)
    if (left < 0 || k >= dims || left % ORDERS > highest)
      return lm_fail_int(name, "order", "a derivative up to the third along each dim of x", order);
  return LM_OK;
}
