/* Checks operands of Fourier transforms beyond what entries express. */
#include <string.h>

#include "base/message.h"
#include "op/operand_checks.h"

lm_status lm_op_fft_c2c(const lm_fft_c2c_args *a, lm_tensor **out) {
  lm_fft_c2c_args run = *a;
  const int ndim = a->x->ndim;
  int64_t dim = a->dim == LM_NO_DIM ? ndim - 2 : a->dim < 0 ? a->dim + ndim : a->dim;
  LM_FRAME(f, LM_OP_fft_c2c);
  NEED(lm_check_real(f.op, "x", a->x));
  if (ndim < 2 || a->x->size[ndim - 1] != 2)
    return lm_fail_shape("fft_c2c", "x", "[..., n, 2], real and imaginary parts", lm_shape_of(a->x));
  if (dim < 0 || dim > ndim - 2)
    return lm_fail_int("fft_c2c", "dim", lm_text("a dim of the transformed x of shape %s", lm_shape_of(a->x)),
                       dim < 0 ? dim - ndim : dim + 1);
  if (a->x->size[dim] < 1)
    return lm_fail_value("fft_c2c", lm_text("dim %lld of x", (long long)dim + 1), "non-empty", lm_shape_of(a->x));
  run.dim = dim;
  NEED(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  NEED(lm_frame_result_like(&f, 0, run.x->dtype, run.x));
  NEED(lm_frame_dispatch_or_host(&f, run.x->device, &run));
  return lm_frame_end(&f, out);
}

/* True if x [..., lines, n, 2] is in memory a dense [..., n, lines, 2], which kernels accept as well. */
static bool is_transposed(const lm_tensor *x) {
  lm_tensor t = *x;
  int lines = x->ndim - 3, entries = x->ndim - 2;
  if (lines < 0) return false;
  t.size[lines] = x->size[entries], t.size[entries] = x->size[lines];
  t.stride[lines] = x->stride[entries], t.stride[entries] = x->stride[lines];
  return lm_is_contiguous(&t);
}

lm_status lm_layout_transposed(lm_frame *f, lm_tensor **t) {
  return is_transposed(*t) ? LM_OK : lm_frame_layout(f, t, LM_CONTIGUOUS);
}

lm_status lm_check_samples(lm_op_id op, int64_t samples, int64_t n) {
  if (samples >= n) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "the number of samples of x", lm_text("at least the window's %lld", (long long)n),
                     samples);
}

lm_status lm_check_overlap(lm_op_id op, int64_t count, int64_t n, int64_t hop, int64_t length) {
  if (length >= n && (length - n) / hop + 1 == count) return LM_OK;
  return lm_fail(LM_E_SHAPE, "%s: %lld frames of %lld samples must make up %lld samples with hop %lld", lm_ops[op].name,
                 (long long)count, (long long)n, (long long)length, (long long)hop);
}

/* Makes *t contiguous and of a dtype; expands it to `size` unless repetition over leading dims suffices. */
static lm_status repeatable(lm_frame *f, lm_dtype dtype, const lm_ints *size, lm_tensor **t) {
  const lm_tensor *x = *t;
  int first = 0;
  while (first < x->ndim && x->size[first] == 1) first++;
  bool repeats =
      memcmp(x->size + first, size->v + size->n - x->ndim + first, sizeof *x->size * (size_t)(x->ndim - first)) == 0;
  NEED(lm_frame_convert(f, t, dtype));
  if (!repeats) NEED(lm_frame_expand(f, t, size, 0));
  return lm_frame_layout(f, t, LM_CONTIGUOUS);
}

lm_status lm_op_fft_multiply(const lm_fft_multiply_args *a, lm_tensor **out) {
  lm_fft_multiply_args run = *a;
  lm_ints size = {.n = 0};
  LM_FRAME(f, LM_OP_fft_multiply);
  NEED(lm_check_same_device(f.op, 2, (lm_tensor *[]){a->x, a->other}));
  NEED(lm_check_real(f.op, "x", a->x));
  NEED(lm_check_real(f.op, "other", a->other));
  const lm_dtype dtype = (a->x->dtype == LM_F64 ? a->x : a->other)->dtype;
  NEED(lm_frame_broadcast(&f, &size, a->x, 0));
  NEED(lm_frame_broadcast(&f, &size, a->other, 0));
  NEED(repeatable(&f, dtype, &size, &run.x));
  NEED(repeatable(&f, dtype, &size, &run.other));
  NEED(lm_frame_result(&f, 0, dtype, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch_or_host(&f, run.x->device, &run));
  return lm_frame_end(&f, out);
}
