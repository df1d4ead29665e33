/* Computes max_unpool2d as a scatter into zeros. */
#include "autograd/composite.h"

#include "autograd/expr.h"
#include "autograd/formulas.h"
#include "base/message.h"
#include "op_entries.h"

/* Returns H and W of the result: output_size if given, else the smallest image that is pooled to x's size. */
static lm_status unpooled_size(const lm_max_unpool2d_args *a, int64_t out[2]) {
  const lm_tensor *t = a->x;
  bool is_image = t->ndim == 3 || t->ndim == 4;
  if (!is_image) return lm_fail_shape("max_unpool2d", "x", "[N, C, H, W] or [C, H, W]", lm_shape_of(t));
  if (a->indices->dtype != LM_I64 || !lm_same_shape(a->indices, t)) {
    return lm_fail_value("max_unpool2d", "indices", lm_text("int64 %s as x", lm_shape_of(t)),
                         lm_text("%s %s", lm_dtype_name(a->indices->dtype), lm_shape_of(a->indices)));
  }
  if (a->kernel_size[0] == LM_NO_INT) return lm_fail_value("max_unpool2d", "kernel_size", "a number or a pair", "nil");
  const int64_t *stride = a->stride[0] == LM_NO_INT ? a->kernel_size : a->stride, *asked = NULL;
  if (a->output_size.n >= 0) {
    if (a->output_size.n != 2 && a->output_size.n != t->ndim) {
      return lm_fail_value("max_unpool2d", "output_size", lm_text("{H, W} or all %d sizes", t->ndim),
                           lm_text("%d sizes", a->output_size.n));
    }
    asked = a->output_size.v + a->output_size.n - 2;
  }
  for (int i = 0; i < 2; i++) {
    int64_t k = a->kernel_size[i], p = a->padding[i];
    if (t->size[t->ndim - 2 + i] > INT32_MAX)
      return lm_fail_value("max_unpool2d", "H and W of x", "at most 2^31 - 1", lm_shape_of(t));
    if (k < 1 || k > INT32_MAX || stride[i] < 1 || stride[i] > INT32_MAX || p < 0 || p > INT32_MAX) {
      return lm_fail_value("max_unpool2d", "kernel_size, stride and padding", "at least 1, 1 and 0, and less than 2^31",
                           lm_text("%lld, %lld and %lld", (long long)k, (long long)stride[i], (long long)p));
    }
    out[i] = (t->size[t->ndim - 2 + i] - 1) * stride[i] - 2 * p + k;
    if (asked && (asked[i] <= out[i] - stride[i] || asked[i] >= out[i] + stride[i])) {
      return lm_fail_value("max_unpool2d", "output_size",
                           lm_text("from %lld to %lld in dim %d", (long long)(out[i] - stride[i] + 1),
                                   (long long)(out[i] + stride[i] - 1), t->ndim - 1 + i),
                           lm_shape_text(a->output_size.n, a->output_size.v));
    }
    if (asked) out[i] = asked[i];
    if (out[i] < 1)
      return lm_fail_value("max_unpool2d", "the output size", "at least 1",
                           lm_text("%lld for x of %s", (long long)out[i], lm_shape_of(t)));
  }
  if (out[0] > INT32_MAX / out[1]) {
    return lm_fail_value("max_unpool2d", "H * W of the output", "at most 2^31 - 1",
                         lm_text("%lld x %lld", (long long)out[0], (long long)out[1]));
  }
  return LM_OK;
}

lm_status lm_composite_max_unpool2d(const lm_max_unpool2d_args *a, lm_tensor **out) {
  lm_expr whole, *e = &whole;
  int64_t hw[2];
  NEED(unpooled_size(a, hw));
  lm_ints size = lm_f_size_of(a->x), rows = {2, {1, 1}}, flat = {2, {1, 1}};
  for (int d = 0; d < size.n - 2; d++) rows.v[0] *= size.v[d];
  rows.v[1] = size.v[size.n - 2] * size.v[size.n - 1];
  flat.v[0] = rows.v[0];
  flat.v[1] = hw[0] * hw[1];
  size.v[size.n - 2] = hw[0];
  size.v[size.n - 1] = hw[1];
  lm_expr_begin(e);
  lm_tensor *y = lm_e_zeros(e, flat, a->x->dtype, a->x->device);
  y = lm_e_scatter_(e, y, 1, lm_e_reshape(e, a->indices, rows), lm_e_reshape(e, a->x, rows), 0 /* replace */);
  return lm_expr_finish(e, lm_e_reshape(e, y, size), out);
}
