/* Sorts along a dim: topk and sort, kthvalue and medians, each with positions; searchsorted. */
#include <string.h>

#include "base/message.h"
#include "op/frame.h"
#include "op/input_layout.h"

/* Runs topk: NaN counts as the largest; equal values keep their order. */
lm_status lm_op_topk(const lm_topk_args *a, lm_tensor **out) {
  lm_topk_args run = *a;
  LM_FRAME(f, LM_OP_topk);
  if (run.dim == LM_NO_DIM) run.dim = -1;
  NEED(lm_frame_line(&f, &run.x, &run.dim));
  lm_ints size = lm_sizes_between(run.x->ndim, run.x->size, 0, 0);
  if (run.k < 0 || run.k > size.v[run.dim]) {
    return lm_fail_int(
        "topk", "k",
        lm_text("from 0 to %lld, the size of dim %lld of x", (long long)size.v[run.dim], (long long)run.dim + 1),
        run.k);
  }
  size.v[run.dim] = run.k;
  NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_result(&f, 1, LM_I64, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, run.x->device, &run));
  if (a->x->ndim == 0 && run.k == 1) f.result[0]->ndim = f.result[1]->ndim = 0;
  return lm_frame_end(&f, out);
}

/* Sorts as topk with k = n: stable, and NaN counts as the largest. */
lm_status lm_op_sort(const lm_sort_args *a, lm_tensor **out) {
  int dim;
  NEED(lm_dim("sort", a->dim == LM_NO_DIM ? -1 : a->dim, a->x->ndim, &dim));
  int64_t n = a->x->ndim == 0 ? 1 : a->x->size[dim];
  return lm_op_topk(&(lm_topk_args){.x = a->x, .k = n, .dim = dim, .largest = a->descending, .sorted = true}, out);
}

/* ---- one element along a dim */

lm_status lm_op_kth_along(lm_op_id op, const lm_kth_along_args *a, lm_tensor **out) {
  lm_tensor *given = a->x;
  LM_OWNED *lines = NULL;
  LM_OWNED_ARRAY(result, 2);
  int dim;
  int64_t size[LM_MAX_DIMS];
  NEED(lm_dim(lm_ops[op].name, a->dim == LM_NO_DIM ? -1 : a->dim, given->ndim, &dim));
  NEED(lm_at_least_1d(given, LM_NO_DTYPE, &lines));
  if (op == LM_OP_kthvalue && (a->k < 1 || a->k > lines->size[dim])) {
    return lm_fail_int("kthvalue", "k",
                       lm_text("from 1 to %lld, the size of dim %d of x", (long long)lines->size[dim], dim + 1), a->k);
  }
  if (lines->size[dim] == 0) return lm_fail_empty_dim(lm_ops[op].name, dim + 1, lm_shape_of(given));
  memcpy(size, lines->size, sizeof size);
  size[dim] = 1;
  NEED(lm_tensor_empty(given->dtype, given->device, lines->ndim, size, LM_CONTIGUOUS, &result[0]));
  NEED(lm_tensor_empty(LM_I64, given->device, lines->ndim, size, LM_CONTIGUOUS, &result[1]));
  lm_kth_along_args args = {.x = lines, .k = a->k, .dim = dim};
  if (result[0]->numel > 0) NEED(lm_dispatch(LM_OP_kth_along, lines->device, &args, result));
  for (int i = 0; i < 2; i++) {
    if (!a->keepdim || given->ndim == 0) lm_drop_dims(result[i], &(lm_ints){1, {dim}});
    out[i] = lm_retain(result[i]);
  }
  return LM_OK;
}

/* Computes the median of all elements, flattened; NaN if there are none. */
lm_status lm_op_median_of(lm_op_id op, const lm_median_of_args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  LM_OWNED *line = NULL;
  LM_OWNED_ARRAY(result, 2);
  if (x->numel == 0 && lm_dtype_is_float(x->dtype)) {
    lm_new_filled_args none = {.number = NAN, .dtype = x->dtype, .device = x->device};
    return lm_op_new_filled(LM_OP_full, &none, out);
  }
  NEED(lm_to_line(x, &line));
  NEED(lm_op_kth_along(op, &(lm_kth_along_args){.x = line, .k = a->k, .dim = 0}, result));
  *out = lm_tensor_take(&result[0]);
  return LM_OK;
}

/* ---- searching */

/* Checks that there is one row for all values, or one row per row of values. */
static lm_status check_rows(const lm_tensor *rows, const lm_tensor *x) {
  bool fits = rows->ndim == 1 || rows->ndim == x->ndim;
  if (rows->ndim == 0) return lm_fail_value("searchsorted", "sorted_sequence", "at least 1-d", "a 0-d tensor");
  for (int d = 0; fits && rows->ndim > 1 && d < x->ndim - 1; d++) fits = rows->size[d] == x->size[d];
  if (fits) return LM_OK;
  return lm_fail_shape("searchsorted", "sorted_sequence", lm_text("[n], or x's %s except the last dim", lm_shape_of(x)),
                       lm_shape_of(rows));
}

/* Runs searchsorted; the kernel gets contiguous tensors of one dtype of float32, float64 and int64. */
lm_status lm_op_searchsorted(const lm_searchsorted_args *a, lm_tensor **out) {
  lm_searchsorted_args run = *a;
  lm_tensor *given[] = {a->sorted_sequence, a->x}, *ordered = NULL;
  const lm_device device = a->sorted_sequence->device;
  LM_FRAME(f, LM_OP_searchsorted);
  NEED(lm_check_same_device(f.op, 2, given));
  NEED(check_rows(a->sorted_sequence, a->x));
  if (a->right && a->side == LM_SIDE_LEFT) return lm_fail_exclusive("searchsorted", "side = 'left'", "right = true");
  lm_dtype dtype = lm_result_type(2, given);
  dtype = dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(dtype) ? LM_F32 : LM_I64;
  if (a->sorter) {
    if (!lm_same_shape(a->sorter, a->sorted_sequence)) {
      return lm_fail_shapes("searchsorted", "sorter", lm_shape_of(a->sorter), "sorted_sequence",
                            lm_shape_of(a->sorted_sequence));
    }
    NEED(lm_op_gather(&(lm_gather_args){.x = a->sorted_sequence, .dim = a->sorter->ndim - 1, .index = a->sorter},
                      &ordered));
    run.sorted_sequence = lm_frame_hold(&f, ordered);
  }
  NEED(lm_frame_contiguous_in(&f, &run.sorted_sequence, dtype, device));
  NEED(lm_frame_contiguous_in(&f, &run.x, dtype, device));
  run.right = a->right || a->side == LM_SIDE_RIGHT;
  NEED(lm_frame_result(&f, 0, LM_I64, device, run.x->ndim, run.x->size, LM_CONTIGUOUS));
  run.sorter = NULL;
  NEED(lm_frame_dispatch(&f, device, &run));
  NEED(lm_frame_convert_result(&f, 0, a->out_int32 ? LM_I32 : LM_I64));
  return lm_frame_end(&f, out);
}
