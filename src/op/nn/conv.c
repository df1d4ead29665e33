/* Checks conv2d and its two gradients, and computes output sizes. conv_integers.c has convolutions of integers, which
 * have no gradients. */
#include "op/nn/conv.h"

#include "base/message.h"
#include "op/operand_checks.h"
#include "op/stream_order.h"

static lm_status check_numbers(const char *name, const int64_t *stride, const int64_t *padding, const int64_t *dilation,
                               int64_t groups) {
  enum { MAX_SIZE = INT32_MAX }; /* keeps products of two of them within 64 bits */
  for (int i = 0; i < 2; i++) {
    if (stride[i] < 1 || stride[i] > MAX_SIZE) return lm_fail_int(name, "stride", "from 1 to 2^31 - 1", stride[i]);
    if (padding[i] < 0 || padding[i] > MAX_SIZE) return lm_fail_int(name, "padding", "from 0 to 2^31 - 1", padding[i]);
    if (dilation[i] < 1 || dilation[i] > MAX_SIZE)
      return lm_fail_int(name, "dilation", "from 1 to 2^31 - 1", dilation[i]);
  }
  if (groups < 1) return lm_fail_int(name, "groups", "at least 1", groups);
  return LM_OK;
}

/* Returns the output size along one dim; 0 if the kernel does not fit. */
static int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  int64_t capacity = size + 2 * padding - dilation * (kernel - 1) - 1;
  return capacity < 0 ? 0 : capacity / stride + 1;
}

/* Checks the numbers of a convolution against each other and against the sizes of x and weight, 4 each, and sets the
 * output's height and width. LM_E_ARG for an invalid stride, padding, dilation or groups, LM_E_SHAPE for sizes that do
 * not fit. */
lm_status lm_check_conv(lm_op_id op, const int64_t *x, const int64_t *weight, const int64_t *stride,
                        const int64_t *padding, const int64_t *dilation, int64_t groups, int64_t *oh, int64_t *ow) {
  const char *name = lm_ops[op].name;
  NEED(check_numbers(name, stride, padding, dilation, groups));
  for (int i = 0; i < 4; i++)
    if (x[i] < 0 || weight[i] < 0)
      return lm_fail_value(name, x[i] < 0 ? "the shape of x" : "the shape of weight", "non-negative",
                           lm_shape_text(4, x[i] < 0 ? x : weight));
  const int64_t c = x[1], h = x[2], w = x[3], k = weight[0], kh = weight[2], kw = weight[3];
  if (c % groups || k % groups)
    return lm_fail_divisible(name, c % groups ? "input channels" : "output channels", c % groups ? c : k, "groups",
                             groups);
  if (weight[1] != c / groups)
    return lm_fail_shape(name, "x",
                         lm_text("[N, %lld, H, W] for weight of %s and groups = %lld", (long long)(weight[1] * groups),
                                 lm_shape_text(4, weight), (long long)groups),
                         lm_shape_text(4, x));
  if (kh < 1 || kw < 1 || kh > INT32_MAX || kw > INT32_MAX)
    return lm_fail_value(name, "the kernel size", "from 1 to 2^31 - 1",
                         lm_text("%lld x %lld", (long long)kh, (long long)kw));
  *oh = output_size(h, kh, stride[0], padding[0], dilation[0]);
  *ow = output_size(w, kw, stride[1], padding[1], dilation[1]);
  if (*oh >= 1 && *ow >= 1) return LM_OK;
  return lm_fail_value(
      name, "the kernel size with dilation",
      lm_text("at most the padded input's %lld x %lld", (long long)(h + 2 * padding[0]),
              (long long)(w + 2 * padding[1])),
      lm_text("%lld x %lld", (long long)(dilation[0] * (kh - 1) + 1), (long long)(dilation[1] * (kw - 1) + 1)));
}

static lm_conv_call call_of(lm_conv_pass pass, lm_tensor *x, lm_tensor *weight, lm_tensor *y, lm_tensor *bias,
                            const int64_t *stride, const int64_t *padding, const int64_t *dilation, int64_t groups) {
  return (lm_conv_call){.pass = pass,
                        .t = {x, weight, y},
                        .bias = bias,
                        .shape = {.n = x->size[0],
                                  .c = x->size[1],
                                  .h = x->size[2],
                                  .w = x->size[3],
                                  .k = weight->size[0],
                                  .kh = weight->size[2],
                                  .kw = weight->size[3],
                                  .oh = y->size[2],
                                  .ow = y->size[3],
                                  .stride = {stride[0], stride[1]},
                                  .padding = {padding[0], padding[1]},
                                  .dilation = {dilation[0], dilation[1]},
                                  .groups = groups}};
}

lm_conv_call lm_conv_call_of(lm_op_id op, const void *args, lm_tensor *const *out) {
  if (op == LM_OP_conv2d) {
    const lm_conv2d_args *a = args;
    return call_of(LM_CONV_FORWARD, a->x, a->weight, out[0], a->bias, a->stride, a->padding, a->dilation, a->groups);
  }
  if (op == LM_OP_conv2d_with_epilogue) {
    const lm_conv2d_with_epilogue_args *a = args;
    lm_conv_call call =
        call_of(LM_CONV_FORWARD, a->x, a->weight, out[0], a->bias, a->stride, a->padding, a->dilation, a->groups);
    call.other = a->other;
    call.activation = a->activation;
    call.low = (float)a->min, call.high = (float)a->max;
    call.finishes = a->other || a->activation || a->min > -INFINITY || a->max < INFINITY;
    return call;
  }
  if (op == LM_OP_conv2d_input) {
    const lm_conv2d_input_args *a = args;
    return call_of(LM_CONV_INPUT, out[0], a->weight, a->grad, NULL, a->stride, a->padding, a->dilation, a->groups);
  }
  const lm_conv2d_weight_args *a = args;
  return call_of(LM_CONV_WEIGHT, a->x, out[0], a->grad, NULL, a->stride, a->padding, a->dilation, a->groups);
}

lm_status lm_check_int8_pack(lm_op_id op, const int64_t *weight, int64_t groups, int64_t *bytes) {
  const int64_t numbers = weight[1] * weight[2] * weight[3];
  if (groups < 1 || weight[0] % groups != 0)
    return lm_fail_divisible(lm_ops[op].name, "output channels", weight[0], "groups", groups);
  if (lm_int8_is_depthwise(weight, groups))
    *bytes = lm_round_up(weight[0] * numbers, LM_INT8_STEP);
  else
    *bytes = groups * lm_round_up(weight[0] / groups, LM_INT8_COLUMNS) * lm_round_up(numbers, LM_INT8_STEP);
  *bytes += weight[0] * (int64_t)sizeof(int32_t);
  return LM_OK;
}

/* Returns the format of images computed from x. */
lm_format lm_conv_format(const lm_tensor *x) {
  const lm_backend *backend = lm_backend_of(x->device);
  bool contiguous = backend && backend->conv_contiguous && backend->conv_contiguous(x->dtype);
  return contiguous ? LM_CONTIGUOUS : LM_CHANNELS_LAST;
}

/* Returns a weight's format: channels-last on GPUs, which compute in it; contiguous on the CPU. */
lm_format lm_weight_format(const lm_tensor *x) { return lm_is_ordered(x->device) ? LM_CHANNELS_LAST : LM_CONTIGUOUS; }

lm_status lm_compute_conv(lm_frame *f, const void *run) {
  const lm_tensor *y = f->result[0];
  if (y->numel == 0 || lm_dtype_is_float(y->dtype)) return lm_frame_dispatch(f, y->device, run);
  const lm_conv_call call = lm_conv_call_of(f->op, run, f->result);
  return lm_conv_integers(&call);
}
