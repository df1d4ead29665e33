/* grid_sample and its two gradients: checks, and operands laid out for the kernels. */
#include "op/nn/grid_sample.h"

#include "base/message.h"
#include "op/input_layout.h"

enum { ORDERS = 4 }; /* of derivatives along each dim */

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

/* x's sizes, its values' dtype and the grid. */
static lm_status check(lm_op_id op, const char *arg, int ndim, const int64_t *size, const lm_tensor *values,
                       const lm_tensor *grid, int64_t order) {
  const char *name = lm_ops[op].name;
  lm_status status;
  int64_t pixels = 1;
  if (ndim != 4 && ndim != 5)
    return lm_fail_shape(name, arg, "[N, C, H, W] or [N, C, D, H, W]", lm_shape_text(ndim, size));
  TRY(lm_check_float(op, arg, values));
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)values, (lm_tensor *)grid}));
  if (grid->ndim != ndim || grid->size[0] != size[0] || grid->size[ndim - 1] != ndim - 2)
    return lm_fail_shape(name, "grid",
                         lm_text("[%lld, %s, %d] for x of %s", (long long)size[0], ndim == 4 ? "H, W" : "D, H, W",
                                 ndim - 2, lm_shape_text(ndim, size)),
                         lm_shape_of(grid));
  if (grid->dtype != values->dtype)
    return lm_fail_dtypes(name, arg, lm_dtype_name(values->dtype), "grid", lm_dtype_name(grid->dtype));
  for (int d = 2; d < ndim; d++) {
    if (size[d] < 1) return lm_fail_shape(name, "x", "sizes of at least 1", lm_shape_text(ndim, size));
    pixels = size[d] > INT32_MAX / pixels ? INT32_MAX + 1LL : pixels * size[d];
    if (pixels > INT32_MAX)
      return lm_fail_value(name, "x", "at most 2^31 - 1 pixels an image", lm_shape_text(ndim, size));
  }
  for (int64_t k = 0, left = order; k < ndim - 2 || left != 0; k++, left /= ORDERS)
    if (left < 0 || k >= ndim - 2 || (op == LM_OP_grid_sample_grid && left % ORDERS == ORDERS - 1))
      return lm_fail_int(name, "order", "a derivative up to the third along each dim of x", order);
done:
  return status;
}

/* A fresh result of that size, zeros where there is nothing to compute. */
static lm_status new_result(const lm_tensor *like, int ndim, const int64_t *size, lm_format format, bool zeros,
                            lm_tensor **out) {
  lm_tensor *filled;
  lm_status status = lm_tensor_empty(like->dtype, like->device, ndim, size, format, out);
  if (status != LM_OK || !zeros || (*out)->numel == 0) return status;
  status = lm_op_zero_(&(lm_zero__args){.x = *out}, &filled);
  if (status == LM_OK) lm_release(filled);
  return status;
}

lm_status lm_op_grid_sample(const lm_grid_sample_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_grid_sample;
  lm_status status;
  lm_grid_sample_args run = *a;
  lm_tensor *y = NULL;
  run.x = run.grid = NULL;
  TRY(check(op, "x", a->x->ndim, a->x->size, a->x, a->grid, a->order));
  TRY(lm_to_layout(a->x, LM_PRESERVE, &run.x));
  TRY(lm_to_layout(a->grid, LM_CONTIGUOUS, &run.grid));
  int64_t size[LM_MAX_DIMS] = {a->x->size[0], a->x->size[1]};
  for (int d = 2; d < a->x->ndim; d++) size[d] = a->grid->size[d - 1];
  TRY(new_result(a->x, a->x->ndim, size, lm_format_of(run.x), false, &y));
  if (y->numel > 0) TRY(lm_dispatch(op, y->device, &run, &y));
  *out = y;
  y = NULL;
done:
  lm_release(run.x);
  lm_release(run.grid);
  lm_release(y);
  return status;
}

/* grad, [n, c, …] with the grid's sizes. */
static lm_status check_grad(lm_op_id op, const lm_tensor *grad, const int64_t *x, const lm_tensor *grid) {
  bool fits = grad->ndim == grid->ndim && grad->size[0] == x[0] && grad->size[1] == x[1];
  for (int d = 2; fits && d < grad->ndim; d++) fits = grad->size[d] == grid->size[d - 1];
  if (fits) return LM_OK;
  return lm_fail_shapes(lm_ops[op].name, "grad", lm_shape_of(grad), "grid", lm_shape_of(grid));
}

lm_status lm_op_grid_sample_input(const lm_grid_sample_input_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_grid_sample_input;
  lm_status status;
  lm_grid_sample_input_args run = *a;
  lm_tensor *dx = NULL;
  run.grad = run.grid = NULL;
  TRY(check(op, "grad", a->size.n, a->size.v, a->grad, a->grid, a->order));
  TRY(check_grad(op, a->grad, a->size.v, a->grid));
  TRY(lm_to_layout(a->grad, LM_PRESERVE, &run.grad));
  TRY(lm_to_layout(a->grid, LM_CONTIGUOUS, &run.grid));
  TRY(new_result(a->grad, a->size.n, a->size.v, lm_format_of(run.grad), a->grad->numel == 0, &dx));
  if (dx->numel > 0 && lm_format_of(dx) != lm_format_of(run.grad)) { /* sizes of 1 fit either layout */
    lm_release(run.grad);
    run.grad = NULL;
    TRY(lm_to_layout(a->grad, lm_format_of(dx), &run.grad));
  }
  if (dx->numel > 0 && a->grad->numel > 0) TRY(lm_dispatch(op, dx->device, &run, &dx));
  *out = dx;
  dx = NULL;
done:
  lm_release(run.grad);
  lm_release(run.grid);
  lm_release(dx);
  return status;
}

lm_status lm_op_grid_sample_grid(const lm_grid_sample_grid_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_grid_sample_grid;
  lm_status status;
  lm_grid_sample_grid_args run = *a;
  lm_tensor *dg = NULL;
  run.grad = run.x = run.grid = NULL;
  TRY(check(op, "x", a->x->ndim, a->x->size, a->x, a->grid, a->order));
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){a->x, a->grad}));
  TRY(check_grad(op, a->grad, a->x->size, a->grid));
  if (a->grad->dtype != a->x->dtype) {
    status = lm_fail_dtypes("grid_sample_grid", "grad", lm_dtype_name(a->grad->dtype), "x", lm_dtype_name(a->x->dtype));
    goto done;
  }
  bool nothing = a->grad->numel == 0 || a->mode == LM_GRID_NEAREST;
  TRY(lm_to_layout(a->x, LM_PRESERVE, &run.x));
  TRY(lm_to_layout(a->grad, lm_format_of(run.x), &run.grad));
  TRY(lm_to_layout(a->grid, LM_CONTIGUOUS, &run.grid));
  TRY(new_result(a->grid, a->grid->ndim, a->grid->size, LM_CONTIGUOUS, nothing, &dg));
  if (!nothing) TRY(lm_dispatch(op, dg->device, &run, &dg));
  *out = dg;
  dg = NULL;
done:
  lm_release(run.grad);
  lm_release(run.x);
  lm_release(run.grid);
  lm_release(dg);
  return status;
}
