/* Flips and rolls tensors, and extracts triangles. */
#include <string.h>

#include "base/message.h"
#include "op/frame.h"

/* ---- flip */

/* Creates a view of x reversed along the flipped dims. It has negative strides, which callers' tensors never have. */
static lm_status reverse_dims_view(lm_tensor *x, const bool *flipped, lm_tensor **out) {
  lm_tensor *v = NULL;
  NEED(lm_tensor_view(x, x->ndim, x->size, x->stride, 0, &v));
  for (int d = 0; d < x->ndim; d++) {
    if (!flipped[d] || x->size[d] < 2) continue;
    v->data += (x->size[d] - 1) * x->stride[d] * (int64_t)lm_dtype_size(x->dtype);
    v->stride[d] = -x->stride[d];
  }
  *out = v;
  return LM_OK;
}

lm_status lm_op_flip(const lm_flip_args *a, lm_tensor **out) {
  lm_tensor *from = NULL;
  bool flipped[LM_MAX_DIMS] = {false};
  lm_ints dims;
  LM_FRAME(f, LM_OP_flip);
  NEED(lm_dims(LM_OP_flip, &a->dims, a->x->ndim, &dims));
  if (a->dims.n == 0) dims.n = 0;
  for (int i = 0; i < dims.n; i++) flipped[dims.v[i]] = true;
  NEED(lm_frame_result_like(&f, 0, a->x->dtype, a->x));
  if (a->x->numel > 0) {
    NEED(reverse_dims_view(a->x, flipped, &from));
    NEED(lm_copy(lm_frame_hold(&f, from), f.result[0]));
  }
  return lm_frame_end(&f, out);
}

/* ---- roll */

/* Replaces *x by its entries shifted along dim: a concatenation of its end and the rest. */
static lm_status roll_dim(lm_frame *f, lm_tensor **x, int dim, int64_t shift) {
  LM_OWNED_ARRAY(part, 2);
  lm_tensor *y = NULL;
  const int64_t n = (*x)->ndim > 0 ? (*x)->size[dim] : 1;
  if ((*x)->numel == 0 || shift % n == 0) return LM_OK;
  shift = (shift % n + n) % n;
  NEED(lm_op_narrow(&(lm_narrow_args){.x = *x, .dim = dim, .start = n - shift + 1, .length = shift}, &part[0]));
  NEED(lm_op_narrow(&(lm_narrow_args){.x = *x, .dim = dim, .start = 1, .length = n - shift}, &part[1]));
  NEED(lm_tensor_empty((*x)->dtype, (*x)->device, (*x)->ndim, (*x)->size, LM_CONTIGUOUS, &y));
  *x = lm_frame_hold(f, y);
  return lm_dispatch(LM_OP_cat, y->device, &(lm_cat_args){.tensors = {2, part}, .dim = dim}, &y);
}

lm_status lm_op_roll(const lm_roll_args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  const bool whole = a->dims.n <= 0;
  LM_FRAME(f, LM_OP_roll);
  if (whole ? a->shifts.n != 1 : a->shifts.n != a->dims.n) {
    return lm_fail_value("roll", "shifts",
                         whole ? "1 shift without dims" : lm_text("%d shifts for %d dims", a->dims.n, a->dims.n),
                         lm_text("%d", a->shifts.n < 0 ? 0 : a->shifts.n));
  }
  if (whole) NEED(lm_frame_layout(&f, &x, LM_CONTIGUOUS));
  if (whole) NEED(lm_frame_reshape(&f, &x, 1, &x->numel));
  for (int i = 0; i < a->shifts.n; i++) {
    int dim = 0;
    if (!whole) NEED(lm_dim("roll", a->dims.v[i], x->ndim, &dim));
    NEED(roll_dim(&f, &x, dim, a->shifts.v[i]));
  }
  if (x->storage == a->x->storage) return lm_op_clone(&(lm_clone_args){.x = a->x, .memory_format = LM_CONTIGUOUS}, out);
  NEED(lm_frame_reshape(&f, &x, a->x->ndim, a->x->size));
  *out = lm_retain(x);
  return LM_OK;
}

/* ---- tril, triu: the kernel gets contiguous x, which may be the result, and a diagonal from -rows to columns */

static lm_status triangle(lm_tensor *x, int64_t k, bool upper, lm_tensor *result) {
  int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1];
  lm_triangle_args args = {.x = x, .diagonal = k < -rows ? -rows : k > columns ? columns : k, .upper = upper};
  return x->numel == 0 ? LM_OK : lm_dispatch(LM_OP_triangle, x->device, &args, &result);
}

static lm_status check_matrices(const char *name, const lm_tensor *x) {
  if (x->ndim >= 2) return LM_OK;
  return lm_fail_shape(name, "x", "[*, rows, columns]", lm_shape_of(x));
}

lm_status lm_op_triangle(const lm_triangle_args *a, lm_tensor **out) {
  lm_triangle_args run = *a;
  LM_FRAME(f, LM_OP_triangle);
  NEED(check_matrices(a->upper ? "triu" : "tril", a->x));
  NEED(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  NEED(lm_frame_result_like(&f, 0, run.x->dtype, run.x));
  NEED(triangle(run.x, a->diagonal, a->upper, f.result[0]));
  return lm_frame_end(&f, out);
}

static lm_status triangle_here(const char *name, lm_tensor *x, int64_t diagonal, bool upper, lm_tensor **out) {
  LM_OWNED *line = NULL;
  NEED(check_matrices(name, x));
  NEED(lm_to_layout(x, LM_CONTIGUOUS, &line));
  NEED(triangle(line, diagonal, upper, line));
  if (line != x) NEED(lm_copy(line, x));
  *out = lm_retain(x);
  return LM_OK;
}

lm_status lm_op_tril_(const lm_tril__args *a, lm_tensor **out) {
  return triangle_here("tril_", a->x, a->diagonal, false, out);
}

lm_status lm_op_triu_(const lm_triu__args *a, lm_tensor **out) {
  return triangle_here("triu_", a->x, a->diagonal, true, out);
}
