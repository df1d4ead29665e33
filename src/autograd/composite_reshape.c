/* Computes reshape, flatten, contiguous, stack and sum_to_size by other ops. */
#include "autograd/composite.h"

#include "autograd/expr.h"
#include "base/mem.h"
#include "base/message.h"
#include "op_entries.h"

/* Returns the requested sizes with -1 replaced by the size that matches x's number of elements. */
static lm_status resolve(const lm_tensor *x, const lm_ints *asked, lm_ints *out) {
  int64_t known = 1;
  int open = -1;
  *out = *asked;
  if (out->n < 0) out->n = 0;
  for (int d = 0; d < out->n; d++) {
    if (out->v[d] == -1 && open < 0) {
      open = d;
    } else if (out->v[d] < 0 || __builtin_mul_overflow(known, out->v[d], &known)) {
      return lm_fail_value("reshape", "size", "non-negative integers, or -1 once", lm_shape_text(asked->n, asked->v));
    }
  }
  if (open >= 0 && known > 0) out->v[open] = x->numel / known;
  if (open >= 0 ? known == 0 || x->numel % known != 0 : known != x->numel) {
    return lm_fail_value("reshape", "size",
                         lm_text("%lld elements as x of shape %s", (long long)x->numel, lm_shape_of(x)),
                         lm_shape_text(out->n, asked->v));
  }
  return LM_OK;
}

lm_status lm_composite_reshape(const lm_reshape_args *a, lm_tensor **out) {
  lm_view_args view_args = {.x = a->x};
  NEED(resolve(a->x, &a->size, &view_args.size));
  lm_status status = lm_call(LM_OP_view, &view_args, out);
  if (status != LM_E_SHAPE) return status;
  lm_expr whole, *e = &whole; /* no view is possible with x's strides */
  lm_expr_begin(e);
  return lm_expr_finish(e, lm_e_view(e, lm_e_clone(e, a->x, LM_CONTIGUOUS), view_args.size), out);
}

lm_status lm_composite_flatten(const lm_flatten_args *a, lm_tensor **out) {
  int first, last;
  lm_reshape_args args = {.x = a->x};
  NEED(lm_dim("flatten", a->start_dim == LM_NO_DIM ? 0 : a->start_dim, a->x->ndim, &first));
  NEED(lm_dim("flatten", a->end_dim == LM_NO_DIM ? -1 : a->end_dim, a->x->ndim, &last));
  if (first > last) {
    return lm_fail_int("flatten", "start_dim", lm_text("at most end_dim (%d)", last + 1), first + 1);
  }
  for (int d = 0; d < a->x->ndim; d++) {
    if (d <= first || d > last) {
      args.size.v[args.size.n++] = a->x->size[d];
    } else {
      args.size.v[args.size.n - 1] *= a->x->size[d];
    }
  }
  if (a->x->ndim == 0) args.size = (lm_ints){1, {1}};
  return lm_call(LM_OP_reshape, &args, out);
}

lm_status lm_composite_contiguous(const lm_contiguous_args *a, lm_tensor **out) {
  bool is_so = a->memory_format == LM_PRESERVE || (a->memory_format == LM_CONTIGUOUS && lm_is_contiguous(a->x)) ||
               (a->memory_format == LM_CHANNELS_LAST && lm_is_channels_last(a->x));
  if (is_so) {
    *out = lm_retain(a->x);
    return LM_OK;
  }
  if (a->memory_format == LM_CHANNELS_LAST && a->x->ndim != 4) {
    return lm_fail_shape("contiguous", "x", "[N, C, H, W] for channels_last", lm_shape_of(a->x));
  }
  return lm_call(LM_OP_clone, &(lm_clone_args){a->x, a->memory_format}, out);
}

lm_status lm_composite_stack(const lm_stack_args *a, lm_tensor **out) {
  int dim;
  if (a->tensors.n == 0) return lm_fail_value("stack", "tensors", "a non-empty list", "{}");
  const lm_tensor *first = a->tensors.v[0];
  NEED(lm_dim("stack", a->dim == LM_NO_DIM ? 0 : a->dim, first->ndim + 1, &dim));
  LM_OWNED_LIST list = {a->tensors.n, lm_calloc((size_t)a->tensors.n, sizeof *list.v)};
  if (!list.v) return LM_E_OOM;
  for (int i = 0; i < list.n; i++) {
    lm_tensor *t = a->tensors.v[i];
    if (!lm_same_shape(t, first)) {
      return lm_fail_shapes("stack", "tensors[1]", lm_shape_of(first), lm_text("tensors[%d]", i + 1), lm_shape_of(t));
    }
    NEED(lm_call(LM_OP_unsqueeze, &(lm_unsqueeze_args){t, dim}, &list.v[i]));
  }
  return lm_call(LM_OP_cat, &(lm_cat_args){list, dim}, out);
}

lm_status lm_composite_sum_to_size(const lm_sum_to_size_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int more = x->ndim - a->size.n;
  lm_ints dims = {.n = 0};
  bool fits = more >= 0 && a->size.n >= 0;
  for (int d = 0; fits && d < x->ndim; d++) {
    if (d < more) {
      dims.v[dims.n++] = d;
    } else if (a->size.v[d - more] != x->size[d]) {
      fits = a->size.v[d - more] == 1;
      dims.v[dims.n++] = d;
    }
  }
  if (!fits) {
    return lm_fail_broadcast("sum_to_size", "size", lm_shape_text(a->size.n < 0 ? 0 : a->size.n, a->size.v),
                             lm_shape_of(x));
  }
  if (dims.n == 0) {
    *out = lm_retain(a->x);
    return LM_OK;
  }
  bool adds = false; /* false if each sum has one element, as for the bias of a batch of one */
  for (int i = 0; i < dims.n; i++) adds = adds || x->size[dims.v[i]] != 1;
  lm_expr whole, *e = &whole;
  lm_expr_begin(e);
  if (!adds) return lm_expr_finish(e, lm_e_reshape(e, a->x, a->size), out);
  bool keepdim = dims.n > more; /* false: no reshape, whose view would keep its base alive */
  lm_tensor *summed = lm_e_sum(e, a->x, dims, keepdim, LM_NO_DTYPE);
  return lm_expr_finish(e, more > 0 && keepdim ? lm_e_reshape(e, summed, a->size) : summed, out);
}
