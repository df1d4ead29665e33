/* Computes pooling's windows and sizes by PyTorch's rules. The result has the layout of a contiguous or channels-last
 * x. */
#include <string.h>

#include "base/message.h"
#include "op/operand_checks.h"
#include "op/stream_order.h"

static const int64_t undilated[2] = {1, 1};

static lm_status check_pair(lm_op_id op, const char *arg, const int64_t v[2], int64_t min_value) {
  for (int i = 0; i < 2; i++)
    if (v[i] < min_value || v[i] > INT32_MAX)
      return lm_fail_value(lm_ops[op].name, arg, lm_text("from %lld to 2^31 - 1", (long long)min_value),
                           lm_text("{%lld, %lld}", (long long)v[0], (long long)v[1]));
  return LM_OK;
}

lm_status lm_check_divisor(lm_op_id op, int64_t divisor) {
  if (divisor == LM_NO_INT || (divisor != 0 && divisor >= -INT32_MAX && divisor <= INT32_MAX)) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "divisor_override", "non-zero and at most 2^31 - 1 in magnitude", divisor);
}

lm_status lm_check_windows(lm_op_id op, const int64_t *kernel_size, int64_t *stride, const int64_t *padding,
                           const int64_t *dilation) {
  const char *name = lm_ops[op].name;
  if (kernel_size[0] == LM_NO_INT) return lm_fail_value(name, "kernel_size", "a number or a pair", "nil");
  if (stride[0] == LM_NO_INT) memcpy(stride, kernel_size, 2 * sizeof *stride);
  NEED(check_pair(op, "kernel_size", kernel_size, 1));
  NEED(check_pair(op, "stride", stride, 1));
  NEED(check_pair(op, "padding", padding, 0));
  NEED(check_pair(op, "dilation", dilation ? dilation : undilated, 1));
  for (int i = 0; i < 2; i++)
    if (padding[i] > kernel_size[i] / 2) {
      lm_fail_value(
          name, "padding",
          lm_text("at most half of kernel_size {%lld, %lld}", (long long)kernel_size[0], (long long)kernel_size[1]),
          lm_text("{%lld, %lld}", (long long)padding[0], (long long)padding[1]));
      return lm_remedy(LM_E_ARG, "pad x before: F.pad(x, {%lld, %lld, %lld, %lld}%s)", (long long)padding[1],
                       (long long)padding[1], (long long)padding[0], (long long)padding[0],
                       dilation ? ", {value = -math.huge}" : "");
    }
  return LM_OK;
}

lm_status lm_check_known_windows(lm_op_id op, const int64_t *kernel_size, int64_t *stride, const int64_t *padding,
                                 const int64_t *dilation) {
  return kernel_size[0] == LM_NO_INT ? LM_OK : lm_check_windows(op, kernel_size, stride, padding, dilation);
}

/* Checks that indices into a plane fit 32 bits. */
lm_status lm_check_plane(lm_op_id op, int64_t h, int64_t w) {
  if (h <= INT32_MAX && w <= INT32_MAX && h * w <= INT32_MAX) return LM_OK;
  return lm_fail_value(lm_ops[op].name, "H * W", "at most 2^31 - 1",
                       lm_text("%lld x %lld", (long long)h, (long long)w));
}

lm_status lm_check_pooled(lm_op_id op, const int64_t *kernel_size, const int64_t *stride, const int64_t *padding,
                          const int64_t *dilation, bool ceil_mode, int64_t h, int64_t w, int64_t *oh, int64_t *ow) {
  const char *name = lm_ops[op].name;
  const int64_t in[2] = {h, w};
  const int64_t *step = dilation ? dilation : undilated;
  if (h > INT32_MAX || w > INT32_MAX)
    return lm_fail_value(name, "H and W of x", "at most 2^31 - 1", lm_text("%lld x %lld", (long long)h, (long long)w));
  for (int i = 0; i < 2; i++) {
    /* Counts the windows that fit along an axis. With ceil_mode, a last one may reach beyond the end if it starts
     * inside the input or the padding before it. */
    int64_t capacity = in[i] + 2 * padding[i] - step[i] * (kernel_size[i] - 1) - 1;
    if (ceil_mode) capacity += stride[i] - 1;
    int64_t out = (capacity < 0 ? -((-capacity + stride[i] - 1) / stride[i]) : capacity / stride[i]) + 1;
    if (ceil_mode && (out - 1) * stride[i] >= in[i] + padding[i]) out--;
    if (out < 1)
      return lm_fail_value(name, "the window",
                           lm_text("at most the padded input's %lld x %lld", (long long)(h + 2 * padding[0]),
                                   (long long)(w + 2 * padding[1])),
                           lm_text("%lld x %lld", (long long)(step[0] * (kernel_size[0] - 1) + 1),
                                   (long long)(step[1] * (kernel_size[1] - 1) + 1)));
    *(i ? ow : oh) = out;
  }
  return LM_OK;
}

lm_status lm_check_adapted(lm_op_id op, int64_t *output_size, int64_t h, int64_t w) {
  for (int i = 0; i < 2; i++) {
    if (output_size[i] == -1 || output_size[i] == LM_NO_INT) output_size[i] = i ? w : h;
  }
  return check_pair(op, "output_size", output_size, 0);
}

static bool has_taps(const lm_tensor *t, const int64_t *kernel_size) {
  return lm_is_ordered(t->device) && kernel_size[0] <= 256 && kernel_size[1] <= 256 / kernel_size[0];
}

/* Returns true if indices are requested, or neither taps nor, on the CPU, a contiguous image's result suffice. */
bool lm_pool_needs_indices(const lm_tensor *x, const int64_t *kernel_size, bool return_indices) {
  bool images = !lm_is_ordered(x->device) && lm_is_contiguous(x) && lm_dtype_is_float(x->dtype);
  return return_indices || !(has_taps(x, kernel_size) || (images && lm_now_running.only_visible));
}

bool lm_pool_needs_taps(const lm_tensor *x, const int64_t *kernel_size, bool return_indices) {
  return !return_indices && !lm_now_running.only_visible && has_taps(x, kernel_size);
}

lm_status lm_check_pool_indices(lm_op_id op, const lm_tensor *indices, const int64_t *kernel_size) {
  const bool taps = indices->dtype == LM_U8 && kernel_size[0] > 0 && has_taps(indices, kernel_size);
  return taps ? LM_OK : lm_check_dtype(op, "indices", indices, LM_I64);
}

lm_format lm_pooled_format(const lm_tensor *indices) {
  return lm_is_channels_last(indices) && indices->size[1] > 1 ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
}

lm_status lm_op_max_pool2d_with_indices(const lm_max_pool2d_with_indices_args *a, lm_tensor **out) {
  lm_max_pool2d_args job = {.x = a->x, .ceil_mode = a->ceil_mode, .return_indices = true};
  lm_tensor *result[3] = {NULL};
  memcpy(job.kernel_size, a->kernel_size, sizeof job.kernel_size);
  memcpy(job.stride, a->stride, sizeof job.stride);
  memcpy(job.padding, a->padding, sizeof job.padding);
  memcpy(job.dilation, a->dilation, sizeof job.dilation);
  NEED(lm_op_max_pool2d(&job, result));
  out[0] = result[0], out[1] = result[1];
  return LM_OK;
}
