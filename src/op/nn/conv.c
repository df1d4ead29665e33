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

lm_status lm_conv_shape_of(lm_op_id op, const int64_t *x, const int64_t *weight, const int64_t *stride,
                           const int64_t *padding, const int64_t *dilation, int64_t groups, lm_conv_shape *out) {
  const char *name = lm_ops[op].name;
  lm_status status = LM_OK;
  TRY(check_numbers(name, stride, padding, dilation, groups));
  for (int i = 0; i < 4; i++)
    if (x[i] < 0 || weight[i] < 0)
      return lm_fail_value(name, x[i] < 0 ? "the shape of x" : "the shape of weight", "non-negative",
                           lm_shape_text(4, x[i] < 0 ? x : weight));
  lm_conv_shape s = {.n = x[0],
                     .c = x[1],
                     .h = x[2],
                     .w = x[3],
                     .k = weight[0],
                     .kh = weight[2],
                     .kw = weight[3],
                     .stride = {stride[0], stride[1]},
                     .padding = {padding[0], padding[1]},
                     .dilation = {dilation[0], dilation[1]},
                     .groups = groups};
  if (s.c % groups || s.k % groups)
    return lm_fail_divisible(name, s.c % groups ? "input channels" : "output channels", s.c % groups ? s.c : s.k,
                             "groups", groups);
  if (weight[1] != s.c / groups)
    return lm_fail_shape(name, "x",
                         lm_text("[N, %lld, H, W] for weight of %s and groups = %lld", (long long)(weight[1] * groups),
                                 lm_shape_text(4, weight), (long long)groups),
                         lm_shape_text(4, x));
  if (s.kh < 1 || s.kw < 1 || s.kh > INT32_MAX || s.kw > INT32_MAX)
    return lm_fail_value(name, "the kernel size", "from 1 to 2^31 - 1",
                         lm_text("%lld x %lld", (long long)s.kh, (long long)s.kw));
  s.oh = output_size(s.h, s.kh, stride[0], padding[0], dilation[0]);
  s.ow = output_size(s.w, s.kw, stride[1], padding[1], dilation[1]);
  if (s.oh < 1 || s.ow < 1)
    return lm_fail_value(
        name, "the kernel size with dilation",
        lm_text("at most the padded input's %lld x %lld", (long long)(s.h + 2 * padding[0]),
                (long long)(s.w + 2 * padding[1])),
        lm_text("%lld x %lld", (long long)(dilation[0] * (s.kh - 1) + 1), (long long)(dilation[1] * (s.kw - 1) + 1)));
  *out = s;
done:
  return status;
}

lm_status lm_conv_call_of(lm_op_id op, const void *args, lm_tensor *const *out, lm_conv_call *call) {
  if (op == LM_OP_conv2d) {
    const lm_conv2d_args *a = args;
    *call = (lm_conv_call){.pass = LM_CONV_FORWARD, .t = {a->x, a->weight, out[0]}, .bias = a->bias};
    return lm_conv_shape_of(op, a->x->size, a->weight->size, a->stride, a->padding, a->dilation, a->groups,
                            &call->shape);
  }
  if (op == LM_OP_conv2d_input) {
    const lm_conv2d_input_args *a = args;
    *call = (lm_conv_call){.pass = LM_CONV_INPUT, .t = {out[0], a->weight, a->grad}};
    return lm_conv_shape_of(op, a->size.v, a->weight->size, a->stride, a->padding, a->dilation, a->groups,
                            &call->shape);
  }
  const lm_conv2d_weight_args *a = args;
  *call = (lm_conv_call){.pass = LM_CONV_WEIGHT, .t = {a->x, out[0], a->grad}};
  return lm_conv_shape_of(op, a->x->size, a->size.v, a->stride, a->padding, a->dilation, a->groups, &call->shape);
}

lm_status lm_check_conv(lm_op_id op, const int64_t *x, const int64_t *weight, const int64_t *stride,
                        const int64_t *padding, const int64_t *dilation, int64_t groups, int64_t *oh, int64_t *ow) {
  lm_conv_shape s = {.oh = 0};
  lm_status status = lm_conv_shape_of(op, x, weight, stride, padding, dilation, groups, &s);
  *oh = s.oh, *ow = s.ow;
  return status;
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
  lm_conv_call call;
  const lm_tensor *y = f->result[0];
  if (y->numel == 0 || lm_dtype_is_float(y->dtype)) return lm_frame_dispatch(f, y->device, run);
  lm_status status = lm_conv_call_of(f->op, run, f->result, &call);
  return status == LM_OK ? lm_conv_integers(&call) : status;
}
