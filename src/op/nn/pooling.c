/* Pooling: windows, sizes, layouts. PyTorch's rules; a contiguous or channels-last input decides the
 * layout of the result, [C, H, W] is a batch of one. */
#include <string.h>

#include "base/message.h"
#include "op/input_layout.h"
#include "op/stream_order.h"

typedef struct windows {
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  bool ceil_mode;
} windows;

static lm_status check_pair(lm_op_id op, const char *arg, const int64_t v[2], int64_t min_value) {
  for (int i = 0; i < 2; i++)
    if (v[i] < min_value || v[i] > INT32_MAX)
      return lm_fail_value(lm_ops[op].name, arg, lm_text("from %lld to 2^31 - 1", (long long)min_value),
                           lm_text("{%lld, %lld}", (long long)v[0], (long long)v[1]));
  return LM_OK;
}

static lm_status check_divisor(lm_op_id op, int64_t divisor) {
  if (divisor == LM_NO_INT || (divisor != 0 && divisor >= -INT32_MAX && divisor <= INT32_MAX)) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "divisor_override", "non-zero and at most 2^31 - 1 in magnitude", divisor);
}

/* Stride defaults to the kernel's size. */
static lm_status check_windows(lm_op_id op, windows *w) {
  const char *name = lm_ops[op].name;
  if (w->kernel[0] == LM_NO_INT) return lm_fail_value(name, "kernel_size", "a number or a pair", "nil");
  if (w->stride[0] == LM_NO_INT) memcpy(w->stride, w->kernel, sizeof w->stride);
  lm_status status = LM_OK;
  TRY(check_pair(op, "kernel_size", w->kernel, 1));
  TRY(check_pair(op, "stride", w->stride, 1));
  TRY(check_pair(op, "padding", w->padding, 0));
  TRY(check_pair(op, "dilation", w->dilation, 1));
  for (int i = 0; i < 2; i++)
    if (w->padding[i] > w->kernel[i] / 2)
      return lm_fail_value(
          name, "padding",
          lm_text("at most half of kernel_size {%lld, %lld}", (long long)w->kernel[0], (long long)w->kernel[1]),
          lm_text("{%lld, %lld}", (long long)w->padding[0], (long long)w->padding[1]));
done:
  return status;
}

static lm_status check_image(lm_op_id op, const char *arg, int ndim, const int64_t *size) {
  bool good = ndim == 3 || ndim == 4;
  for (int d = ndim - 3; good && d < ndim; d++) good = size[d] > 0 && size[d] <= INT32_MAX;
  if (good) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, arg, "[N, C, H, W] or [C, H, W] with C, H and W at least 1",
                       lm_shape_text(ndim, size));
}

/* Indices into a plane are 32 bits wide. */
static lm_status check_plane(lm_op_id op, const int64_t *hw) {
  if (hw[0] * hw[1] <= INT32_MAX) return LM_OK;
  return lm_fail_value(lm_ops[op].name, "H * W", "at most 2^31 - 1",
                       lm_text("%lld x %lld", (long long)hw[0], (long long)hw[1]));
}

/* Windows that fit along an axis; with ceil_mode also a last one that reaches over the end, as long
 * as it starts inside the input or the padding before it. */
static int64_t pooled(int64_t in, const windows *w, int i) {
  int64_t capacity = in + 2 * w->padding[i] - w->dilation[i] * (w->kernel[i] - 1) - 1;
  if (w->ceil_mode) capacity += w->stride[i] - 1;
  int64_t out = (capacity < 0 ? -lm_ceil_div(-capacity, w->stride[i]) : capacity / w->stride[i]) + 1;
  if (w->ceil_mode && (out - 1) * w->stride[i] >= in + w->padding[i]) out--;
  return out;
}

/* hw: sizes of the input. */
static lm_status pooled_size(lm_op_id op, const int64_t *hw, const windows *w, int64_t out[2]) {
  const char *name = lm_ops[op].name;
  for (int i = 0; i < 2; i++) {
    out[i] = pooled(hw[i], w, i);
    if (out[i] < 1)
      return lm_fail_value(name, "the window",
                           lm_text("at most the padded input's %lld x %lld", (long long)(hw[0] + 2 * w->padding[0]),
                                   (long long)(hw[1] + 2 * w->padding[1])),
                           lm_text("%lld x %lld", (long long)(w->dilation[0] * (w->kernel[0] - 1) + 1),
                                   (long long)(w->dilation[1] * (w->kernel[1] - 1) + 1)));
    /* A dilated window can step over a small input altogether: its first place at or after 0. */
    int64_t first = (w->dilation[i] - w->padding[i] % w->dilation[i]) % w->dilation[i];
    if (first >= hw[i])
      return lm_fail(
          LM_E_SHAPE,
          "%s: the first window must overlap the input, got padding %lld and dilation %lld for an input of %lld x %lld",
          name, (long long)w->padding[i], (long long)w->dilation[i], (long long)hw[0], (long long)hw[1]);
  }
  return LM_OK;
}

/* [C, H, W] as [1, C, H, W], in the wanted layout; a new reference. */
static lm_status as_images(lm_tensor *t, lm_format format, lm_tensor **out) {
  if (t->ndim == 4) return lm_to_layout(t, format, out);
  int64_t size[4] = {1, t->size[0], t->size[1], t->size[2]};
  int64_t stride[4] = {t->size[0] * t->stride[0], t->stride[0], t->stride[1], t->stride[2]};
  lm_tensor *batch;
  lm_status status = lm_tensor_view(t, 4, size, stride, 0, &batch);
  if (status != LM_OK) return status;
  status = lm_to_layout(batch, format, out);
  lm_release(batch);
  return status;
}

/* Takes the leading 1 off a fresh header. */
static void drop_batch(lm_tensor *t) {
  t->ndim = 3;
  memmove(t->size, t->size + 1, 3 * sizeof *t->size);
  memmove(t->stride, t->stride + 1, 3 * sizeof *t->stride);
}

static lm_status new_images(lm_dtype dtype, const lm_tensor *like, lm_format format, int64_t h, int64_t w,
                            lm_tensor **out) {
  int64_t size[4] = {like->size[0], like->size[1], h, w};
  return lm_tensor_empty(dtype, like->device, 4, size, format, out);
}

lm_status lm_op_max_pool2d(const lm_max_pool2d_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *y = NULL, *indices = NULL;
  lm_max_pool2d_args job = *a;
  windows w = {{a->kernel_size[0], a->kernel_size[1]},
               {a->stride[0], a->stride[1]},
               {a->padding[0], a->padding[1]},
               {a->dilation[0], a->dilation[1]},
               a->ceil_mode};
  int64_t hw[2];
  if (a->x->dtype == LM_BOOL)
    return lm_remedy(lm_fail_dtype("max_pool2d", "x", "a number dtype", "bool"), "convert it with :to(\"uint8\")");
  TRY(check_image(LM_OP_max_pool2d, "x", a->x->ndim, a->x->size));
  TRY(check_windows(LM_OP_max_pool2d, &w));
  TRY(pooled_size(LM_OP_max_pool2d, a->x->size + a->x->ndim - 2, &w, hw));
  TRY(check_plane(LM_OP_max_pool2d, a->x->size + a->x->ndim - 2));
  TRY(as_images(a->x, LM_PRESERVE, &x));
  TRY(new_images(x->dtype, x, lm_format_of(x), hw[0], hw[1], &y));
  bool images = !lm_is_ordered(x->device) && lm_is_contiguous(x) && lm_dtype_is_float(x->dtype);
  if (!lm_now_running.only_visible || !images) { /* without indices there are kernels for these alone */
    TRY(new_images(LM_I64, x, lm_format_of(x), hw[0], hw[1], &indices));
  }
  job.x = x;
  memcpy(job.stride, w.stride, sizeof w.stride);
  TRY(lm_dispatch(LM_OP_max_pool2d, x->device, &job, (lm_tensor *[]){y, indices}));
  if (a->x->ndim == 3) drop_batch(y);
  if (a->x->ndim == 3 && indices) drop_batch(indices);
  out[0] = lm_retain(y);
  out[1] = indices ? lm_retain(indices) : NULL;
done:
  lm_release(x);
  lm_release(y);
  lm_release(indices);
  return status;
}

lm_status lm_op_max_pool2d_with_indices(const lm_max_pool2d_with_indices_args *a, lm_tensor **out) {
  lm_max_pool2d_args job = {.x = a->x, .ceil_mode = a->ceil_mode};
  memcpy(job.kernel_size, a->kernel_size, sizeof job.kernel_size);
  memcpy(job.stride, a->stride, sizeof job.stride);
  memcpy(job.padding, a->padding, sizeof job.padding);
  memcpy(job.dilation, a->dilation, sizeof job.dilation);
  return lm_op_max_pool2d(&job, out);
}

/* size: sizes of the pooled input, to be [N,] C, H, W; grad has the same N and C. */
static lm_status check_backward(lm_op_id op, const lm_tensor *grad, const lm_ints *size) {
  lm_status status = LM_OK;
  TRY(lm_check_float(op, "grad", grad));
  TRY(check_image(op, "size", size->n, size->v));
  bool fits = grad->ndim == size->n;
  for (int d = 0; fits && d < size->n - 2; d++) fits = grad->size[d] == size->v[d];
  if (!fits)
    status = lm_fail_shape(lm_ops[op].name, "grad", lm_text("that of a pooled %s", lm_shape_text(size->n, size->v)),
                           lm_shape_of(grad));
done:
  return status;
}

lm_status lm_op_max_pool2d_backward(const lm_max_pool2d_backward_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *grad = NULL, *indices = NULL, *dx = NULL;
  lm_max_pool2d_backward_args job = *a;
  windows w = {{a->kernel_size[0], a->kernel_size[1]},
               {a->stride[0], a->stride[1]},
               {a->padding[0], a->padding[1]},
               {a->dilation[0], a->dilation[1]},
               false};
  const int64_t *hw = a->size.v + a->size.n - 2;
  TRY(check_backward(LM_OP_max_pool2d_backward, a->grad, &a->size));
  TRY(lm_check_same_device(LM_OP_max_pool2d_backward, 2, (lm_tensor *[]){a->grad, a->indices}));
  if (a->indices->dtype != LM_I64 || !lm_same_shape(a->indices, a->grad)) {
    status = lm_fail_value("max_pool2d_backward", "indices", lm_text("int64 %s as grad", lm_shape_of(a->grad)),
                           lm_text("%s %s", lm_dtype_name(a->indices->dtype), lm_shape_of(a->indices)));
    goto done;
  }
  if (w.kernel[0] != LM_NO_INT) TRY(check_windows(LM_OP_max_pool2d_backward, &w));
  TRY(as_images(a->indices, LM_PRESERVE, &indices));
  lm_format format = lm_is_channels_last(indices) && indices->size[1] > 1 ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
  TRY(as_images(a->grad, format, &grad));
  TRY(new_images(grad->dtype, grad, format, hw[0], hw[1], &dx));
  job.grad = grad;
  job.indices = indices;
  memcpy(job.stride, w.stride, sizeof w.stride);
  TRY(lm_dispatch(LM_OP_max_pool2d_backward, grad->device, &job, &dx));
  if (a->grad->ndim == 3) drop_batch(dx);
  out[0] = lm_retain(dx);
done:
  lm_release(grad);
  lm_release(indices);
  lm_release(dx);
  return status;
}

lm_status lm_op_avg_pool2d(const lm_avg_pool2d_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *y = NULL;
  lm_avg_pool2d_args job = *a;
  windows w = {{a->kernel_size[0], a->kernel_size[1]},
               {a->stride[0], a->stride[1]},
               {a->padding[0], a->padding[1]},
               {1, 1},
               a->ceil_mode};
  int64_t hw[2];
  if (a->x->dtype != LM_I64) TRY(lm_check_float(LM_OP_avg_pool2d, "x", a->x));
  TRY(check_image(LM_OP_avg_pool2d, "x", a->x->ndim, a->x->size));
  TRY(check_windows(LM_OP_avg_pool2d, &w));
  TRY(check_divisor(LM_OP_avg_pool2d, a->divisor_override));
  TRY(pooled_size(LM_OP_avg_pool2d, a->x->size + a->x->ndim - 2, &w, hw));
  TRY(as_images(a->x, LM_PRESERVE, &x));
  TRY(new_images(x->dtype, x, lm_format_of(x), hw[0], hw[1], &y));
  job.x = x;
  memcpy(job.stride, w.stride, sizeof w.stride);
  TRY(lm_dispatch(LM_OP_avg_pool2d, x->device, &job, &y));
  if (a->x->ndim == 3) drop_batch(y);
  out[0] = lm_retain(y);
done:
  lm_release(x);
  lm_release(y);
  return status;
}

lm_status lm_op_avg_pool2d_backward(const lm_avg_pool2d_backward_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *grad = NULL, *dx = NULL;
  lm_avg_pool2d_backward_args job = *a;
  windows w = {{a->kernel_size[0], a->kernel_size[1]},
               {a->stride[0], a->stride[1]},
               {a->padding[0], a->padding[1]},
               {1, 1},
               a->ceil_mode};
  const int64_t *in = a->size.v + a->size.n - 2, *got = a->grad->size + a->grad->ndim - 2;
  int64_t hw[2];
  TRY(check_backward(LM_OP_avg_pool2d_backward, a->grad, &a->size));
  TRY(check_windows(LM_OP_avg_pool2d_backward, &w));
  TRY(check_divisor(LM_OP_avg_pool2d_backward, a->divisor_override));
  TRY(pooled_size(LM_OP_avg_pool2d_backward, in, &w, hw));
  if (got[0] != hw[0] || got[1] != hw[1]) {
    status = lm_fail_shape(
        "avg_pool2d_backward", "grad",
        lm_text("[*, %lld, %lld] for x of %s", (long long)hw[0], (long long)hw[1], lm_shape_text(a->size.n, a->size.v)),
        lm_shape_of(a->grad));
    goto done;
  }
  TRY(as_images(a->grad, lm_gradient_format(&a->size), &grad));
  TRY(new_images(grad->dtype, grad, lm_gradient_format(&a->size), in[0], in[1], &dx));
  job.grad = grad;
  memcpy(job.stride, w.stride, sizeof w.stride);
  TRY(lm_dispatch(LM_OP_avg_pool2d_backward, grad->device, &job, &dx));
  if (a->grad->ndim == 3) drop_batch(dx);
  out[0] = lm_retain(dx);
done:
  lm_release(grad);
  lm_release(dx);
  return status;
}

/* Sizes of the result: one of a pair may keep the input's. */
static lm_status adapted_size(lm_op_id op, const lm_tensor *x, const int64_t output_size[2], int64_t hw[2]) {
  lm_status status;
  TRY(lm_check_float(op, "x", x));
  TRY(check_image(op, "x", x->ndim, x->size));
  for (int i = 0; i < 2; i++) {
    bool kept = output_size[i] == -1 || output_size[i] == LM_NO_INT;
    hw[i] = kept ? x->size[x->ndim - 2 + i] : output_size[i];
  }
  TRY(check_pair(op, "output_size", hw, 0));
done:
  return status;
}

lm_status lm_op_adaptive_avg_pool2d(const lm_adaptive_avg_pool2d_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *y = NULL;
  lm_adaptive_avg_pool2d_args job = *a;
  TRY(adapted_size(LM_OP_adaptive_avg_pool2d, a->x, a->output_size, job.output_size));
  TRY(as_images(a->x, LM_PRESERVE, &x));
  TRY(new_images(x->dtype, x, lm_format_of(x), job.output_size[0], job.output_size[1], &y));
  job.x = x;
  TRY(lm_dispatch(LM_OP_adaptive_avg_pool2d, x->device, &job, &y));
  if (a->x->ndim == 3) drop_batch(y);
  out[0] = lm_retain(y);
done:
  lm_release(x);
  lm_release(y);
  return status;
}

lm_status lm_op_adaptive_max_pool2d(const lm_adaptive_max_pool2d_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_adaptive_max_pool2d;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *y = NULL, *indices = NULL;
  lm_adaptive_max_pool2d_args job = *a;
  TRY(adapted_size(op, a->x, a->output_size, job.output_size));
  TRY(check_plane(op, a->x->size + a->x->ndim - 2));
  TRY(as_images(a->x, LM_PRESERVE, &x));
  TRY(new_images(x->dtype, x, lm_format_of(x), job.output_size[0], job.output_size[1], &y));
  TRY(new_images(LM_I64, x, lm_format_of(x), job.output_size[0], job.output_size[1], &indices));
  job.x = x;
  TRY(lm_dispatch(op, x->device, &job, (lm_tensor *[]){y, indices}));
  if (a->x->ndim == 3) drop_batch(y), drop_batch(indices);
  out[0] = lm_retain(y);
  out[1] = lm_retain(indices);
done:
  lm_release(x);
  lm_release(y);
  lm_release(indices);
  return status;
}

lm_status lm_op_adaptive_avg_pool2d_backward(const lm_adaptive_avg_pool2d_backward_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *grad = NULL, *dx = NULL;
  lm_adaptive_avg_pool2d_backward_args job = *a;
  const int64_t *in = a->size.v + a->size.n - 2;
  TRY(check_backward(LM_OP_adaptive_avg_pool2d_backward, a->grad, &a->size));
  TRY(as_images(a->grad, lm_gradient_format(&a->size), &grad));
  TRY(new_images(grad->dtype, grad, lm_gradient_format(&a->size), in[0], in[1], &dx));
  job.grad = grad;
  TRY(lm_dispatch(LM_OP_adaptive_avg_pool2d_backward, grad->device, &job, &dx));
  if (a->grad->ndim == 3) drop_batch(dx);
  out[0] = lm_retain(dx);
done:
  lm_release(grad);
  lm_release(dx);
  return status;
}
