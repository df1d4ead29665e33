/* Fourier transforms: checks, and results. */
#include <string.h>

#include "op/input_layout.h"

static lm_status check_lines(lm_op_id op, const lm_tensor *x, bool pairs, int64_t dim) {
  const char *name = lm_ops[op].name;
  if (x->dtype != LM_F32 && x->dtype != LM_F64)
    return lm_fail(LM_E_DTYPE, "%s: x has to be float32 or float64, got %s; use :float()", name,
                   lm_dtype_name((lm_dtype)x->dtype));
  if (x->ndim < 1 + pairs || (pairs && x->size[x->ndim - 1] != 2))
    return lm_fail(LM_E_SHAPE, "%s: x is %s; it has to be %s", name, lm_shape_of(x),
                   pairs ? "pairs [..., n, 2], real and imaginary parts" : "[..., n]");
  if (dim < 0 || dim > x->ndim - 1 - pairs)
    return lm_fail(LM_E_SHAPE, "%s: x is %s; there is no dim %lld of lines", name, lm_shape_of(x),
                   (long long)(dim < 0 ? dim - x->ndim : dim + 1));
  if (x->size[dim] < 1)
    return lm_fail(LM_E_SHAPE, "%s: x is %s; lines without an entry have no transform", name, lm_shape_of(x));
  return LM_OK;
}

static lm_status compute(lm_op_id op, const lm_tensor *x, const void *args, int ndim, const int64_t *size,
                         lm_tensor **out) {
  lm_status status;
  lm_tensor *y = NULL;
  TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel) TRY(lm_dispatch_or_host(op, x->device, args, &y));
  *out = y;
  y = NULL;
done:
  lm_release(y);
  return status;
}

lm_status lm_op_fft_c2c(const lm_fft_c2c_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t dim = a->dim == LM_NO_DIM ? a->x->ndim - 2 : a->dim < 0 ? a->dim + a->x->ndim : a->dim;
  TRY(check_lines(LM_OP_fft_c2c, a->x, true, dim));
  TRY(lm_laid_out(a->x, LM_CONTIGUOUS, &x));
  lm_fft_c2c_args args = {.x = x, .inverse = a->inverse, .scale = a->scale, .dim = dim};
  status = compute(LM_OP_fft_c2c, x, &args, x->ndim, x->size, out);
done:
  lm_release(x);
  return status;
}

lm_status lm_op_fft_r2c(const lm_fft_r2c_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_lines(LM_OP_fft_r2c, a->x, false, a->x->ndim - 1));
  if (a->x->ndim == LM_MAX_DIMS) {
    status = lm_fail(LM_E_SHAPE, "fft_r2c: x is %s; its result would have more than %d dims", lm_shape_of(a->x),
                     LM_MAX_DIMS);
    goto done;
  }
  TRY(lm_laid_out(a->x, LM_CONTIGUOUS, &x));
  memcpy(size, x->size, sizeof size);
  size[x->ndim - 1] = x->size[x->ndim - 1] / 2 + 1;
  size[x->ndim] = 2;
  lm_fft_r2c_args args = {.x = x, .scale = a->scale};
  status = compute(LM_OP_fft_r2c, x, &args, x->ndim + 1, size, out);
done:
  lm_release(x);
  return status;
}

lm_status lm_op_fft_c2r(const lm_fft_c2r_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_lines(LM_OP_fft_c2r, a->x, true, a->x->ndim - 2));
  int last = a->x->ndim - 2;
  if (a->n < 1 || a->x->size[last] != a->n / 2 + 1) {
    status = lm_fail(LM_E_SHAPE, "fft_c2r: x is %s; lines of %lld come from %lld entries", lm_shape_of(a->x),
                     (long long)a->n, (long long)(a->n / 2 + 1));
    goto done;
  }
  TRY(lm_laid_out(a->x, LM_CONTIGUOUS, &x));
  memcpy(size, x->size, sizeof size);
  size[last] = a->n;
  lm_fft_c2r_args args = {.x = x, .n = a->n, .scale = a->scale};
  status = compute(LM_OP_fft_c2r, x, &args, last + 1, size, out);
done:
  lm_release(x);
  return status;
}
