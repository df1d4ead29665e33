/* conv2d and its two gradients: checks, output sizes, and images without a batch dimension. Convolutions of integers,
 * which have no gradients, are in conv_integers.c. */
#include "op/nn/conv.h"

#include "base/message.h"
#include "op/check.h"
#include "op/stream_order.h"

static lm_status check_numbers(const char *name, const int64_t *stride, const int64_t *padding, const int64_t *dilation,
                               int64_t groups) {
  enum { MAX_SIZE = INT32_MAX }; /* keeps every product of two of them inside 64 bits */
  for (int i = 0; i < 2; i++) {
    if (stride[i] < 1 || stride[i] > MAX_SIZE) return lm_fail_int(name, "stride", "from 1 to 2^31 - 1", stride[i]);
    if (padding[i] < 0 || padding[i] > MAX_SIZE) return lm_fail_int(name, "padding", "from 0 to 2^31 - 1", padding[i]);
    if (dilation[i] < 1 || dilation[i] > MAX_SIZE)
      return lm_fail_int(name, "dilation", "from 1 to 2^31 - 1", dilation[i]);
  }
  if (groups < 1) return lm_fail_int(name, "groups", "at least 1", groups);
  return LM_OK;
}

/* Output size along one dimension; 0 or less when the kernel does not fit. */
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

static lm_status check_pair(lm_op_id op, const char *first, const lm_tensor *a, const char *second,
                            const lm_tensor *b) {
  lm_status status = LM_OK;
  bool integers = op != LM_OP_conv2d_weight && a->dtype != LM_BOOL; /* have convolutions */
  if (!integers) TRY(lm_check_float(op, first, a));
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)a, (lm_tensor *)b}));
  if (a->dtype != b->dtype)
    status = lm_fail_dtypes(lm_ops[op].name, first, lm_dtype_name(a->dtype), second, lm_dtype_name(b->dtype));
done:
  return status;
}

static lm_status check_images(lm_op_id op, const char *arg, const lm_tensor *t) {
  if (t->ndim == 3 || t->ndim == 4) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, arg, "[N, C, H, W] or [C, H, W]", lm_shape_of(t));
}

/* [C, H, W] as a batch of one. *out is yours. */
static lm_status as_batch(lm_tensor *t, lm_tensor **out) {
  if (t->ndim == 4) {
    *out = lm_retain(t);
    return LM_OK;
  }
  int64_t size[4] = {1, t->size[0], t->size[1], t->size[2]};
  int64_t stride[4] = {t->numel, t->stride[0], t->stride[1], t->stride[2]};
  return lm_tensor_view(t, 4, size, stride, 0, out);
}

/* A fresh batch of one becomes [C, H, W]. */
static void drop_batch(lm_tensor *t) {
  t->ndim = 3;
  for (int i = 0; i < 3; i++) {
    t->size[i] = t->size[i + 1];
    t->stride[i] = t->stride[i + 1];
  }
}

/* Of images that are computed from t. */
static lm_format format_on(const lm_tensor *t) {
  const lm_backend *backend = lm_backend_of(t->device);
  bool contiguous = backend && backend->conv_contiguous && backend->conv_contiguous(t->dtype);
  return contiguous ? LM_CONTIGUOUS : LM_CHANNELS_LAST;
}

static lm_status compute(lm_op_id op, const void *args, lm_tensor *out) {
  lm_conv_call call;
  if (lm_dtype_is_float(out->dtype)) return lm_dispatch(op, out->device, args, &out);
  lm_status status = lm_conv_call_of(op, args, &out, &call);
  return status == LM_OK ? lm_conv_integers(&call) : status;
}

lm_status lm_op_conv2d(const lm_conv2d_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *y = NULL;
  lm_conv2d_args run = *a;
  run.x = NULL;
  TRY(check_images(LM_OP_conv2d, "x", a->x));
  TRY(lm_check_ndim(LM_OP_conv2d, "weight", a->weight, 4));
  TRY(check_pair(LM_OP_conv2d, "x", a->x, "weight", a->weight));
  if (a->bias) {
    TRY(check_pair(LM_OP_conv2d, "x", a->x, "bias", a->bias));
    if (a->bias->ndim != 1 || a->bias->size[0] != a->weight->size[0]) {
      status = lm_fail_shape("conv2d", "bias",
                             lm_text("[%lld] for weight of %s", (long long)a->weight->size[0], lm_shape_of(a->weight)),
                             lm_shape_of(a->bias));
      goto done;
    }
  }
  TRY(as_batch(a->x, &run.x));
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d, run.x->size, a->weight->size, a->stride, a->padding, a->dilation, a->groups, &s));
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, 4, (int64_t[]){s.n, s.k, s.oh, s.ow}, format_on(a->x), &y));
  if (y->numel) TRY(compute(LM_OP_conv2d, &run, y));
  if (a->x->ndim == 3) drop_batch(y);
  out[0] = y;
  y = NULL;
done:
  lm_release(y);
  lm_release(run.x);
  return status;
}

/* The gradient's sizes must be those that conv2d returns for x and weight of these sizes. */
static lm_status check_grad(lm_op_id op, const lm_tensor *grad, const lm_conv_shape *s) {
  const int64_t size[4] = {s->n, s->k, s->oh, s->ow};
  for (int i = 0; i < 4; i++)
    if (grad->size[i] != size[i])
      return lm_fail_shape(lm_ops[op].name, "grad", lm_shape_text(4, size), lm_shape_of(grad));
  return LM_OK;
}

lm_status lm_op_conv2d_input(const lm_conv2d_input_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *dx = NULL;
  lm_conv2d_input_args run = *a;
  run.grad = NULL;
  TRY(check_images(LM_OP_conv2d_input, "grad", a->grad));
  TRY(lm_check_ndim(LM_OP_conv2d_input, "weight", a->weight, 4));
  TRY(check_pair(LM_OP_conv2d_input, "grad", a->grad, "weight", a->weight));
  if (a->size.n != a->grad->ndim) {
    status = lm_fail_value("conv2d_input", "size",
                           lm_text("%d sizes as grad of shape %s", a->grad->ndim, lm_shape_of(a->grad)),
                           lm_shape_text(a->size.n, a->size.v));
    goto done;
  }
  if (a->size.n == 3) run.size = (lm_ints){4, {1, a->size.v[0], a->size.v[1], a->size.v[2]}};
  TRY(as_batch(a->grad, &run.grad));
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d_input, run.size.v, a->weight->size, a->stride, a->padding, a->dilation, a->groups,
                       &s));
  TRY(check_grad(LM_OP_conv2d_input, run.grad, &s));
  TRY(lm_tensor_empty(a->grad->dtype, a->grad->device, 4, run.size.v, format_on(a->grad), &dx));
  if (dx->numel) TRY(compute(LM_OP_conv2d_input, &run, dx));
  if (a->size.n == 3) drop_batch(dx);
  out[0] = dx;
  dx = NULL;
done:
  lm_release(dx);
  lm_release(run.grad);
  return status;
}

lm_status lm_op_conv2d_weight(const lm_conv2d_weight_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *dw = NULL;
  lm_conv2d_weight_args run = *a;
  run.grad = run.x = NULL;
  TRY(check_images(LM_OP_conv2d_weight, "x", a->x));
  TRY(lm_check_ndim(LM_OP_conv2d_weight, "grad", a->grad, a->x->ndim));
  TRY(check_pair(LM_OP_conv2d_weight, "grad", a->grad, "x", a->x));
  if (a->size.n != 4) {
    status = lm_fail_value("conv2d_weight", "size", "4 sizes", lm_shape_text(a->size.n, a->size.v));
    goto done;
  }
  TRY(as_batch(a->grad, &run.grad));
  TRY(as_batch(a->x, &run.x));
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d_weight, run.x->size, a->size.v, a->stride, a->padding, a->dilation, a->groups, &s));
  TRY(check_grad(LM_OP_conv2d_weight, run.grad, &s));
  /* GPUs compute it channels-last, and that is how a network for them has its weights; the CPU's own are contiguous. */
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, 4, a->size.v,
                      lm_is_ordered(a->x->device) ? LM_CHANNELS_LAST : LM_CONTIGUOUS, &dw));
  if (dw->numel) TRY(lm_dispatch(LM_OP_conv2d_weight, dw->device, &run, &dw));
  out[0] = dw;
  dw = NULL;
done:
  lm_release(dw);
  lm_release(run.grad);
  lm_release(run.x);
  return status;
}
