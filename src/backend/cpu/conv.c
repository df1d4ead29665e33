/* conv2d and its gradients: brings operands into the layout and type that kernels take, and chooses
 * among them. LM_CONV=direct, winograd or auto (Winograd where it is faster) in the environment:
 * direct convolution has about a tenth of Winograd's rounding error. */
#include "backend/cpu/conv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/onednn.h"
#include "base/log.h"

typedef enum mode { AUTO, DIRECT, WINOGRAD, UNKNOWN } mode;
static mode chosen = AUTO;

static void read_mode(void) {
  static const char *const names[] = {"auto", "direct", "winograd"};
  const char *wanted = getenv("LM_CONV");
  if (!wanted || !wanted[0]) return;
  chosen = UNKNOWN;
  for (int i = 0; i < 3; i++)
    if (!strcmp(wanted, names[i])) chosen = (mode)i;
}

/* x, y channels-last, w contiguous, all of job->dtype. *done is false where bfloat16 has no kernel. */
static lm_status convolve(const lm_conv_job *job, bool *done_) {
  lm_status status = LM_OK;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_mode);
  if (chosen == UNKNOWN)
    return lm_fail(LM_E_ARG, "conv2d: LM_CONV is \"%s\"; auto, direct and winograd are known", getenv("LM_CONV"));
  const lm_conv_shape *s = &job->shape;
  *done_ = true;
  if (chosen != DIRECT && lm_wino_takes(job) && (chosen == WINOGRAD || lm_wino_pays(job))) {
    if (lm_log_on(LM_LOG_OP))
      lm_log(LM_LOG_OP, "Winograd: x [%lld, %lld, %lld, %lld], %lld channels out, pass %d", (long long)s->n,
             (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->k, (int)job->pass);
    return lm_wino_conv(job);
  }
  if (job->dtype != LM_F64 && s->n > 0 && s->c > 0 && s->k > 0 && s->h > 0 && s->w > 0) {
    TRY(lm_dnn_conv(job, done_));
    if (*done_ || job->dtype == LM_BF16) goto done;
    *done_ = true;
  }
  if (job->dtype == LM_BF16)
    *done_ = false;
  else
    TRY(lm_im2col_conv(job));
done:
  return status;
}

/* t itself, or a copy of another dtype or layout. */
static lm_status prepare(lm_tensor *t, lm_dtype dtype, lm_format format, lm_tensor **out) {
  lm_status status = LM_OK;
  if (!t) return LM_OK;
  if (t->dtype == dtype && (format == LM_CHANNELS_LAST ? lm_is_channels_last(t) : lm_is_contiguous(t))) {
    *out = lm_retain(t);
    return LM_OK;
  }
  TRY(lm_tensor_empty(dtype, t->device, t->ndim, t->size, format, out));
  TRY(lm_cpu_copy(t, *out));
done:
  return status;
}

/* The tensors of one pass; `result` is the one of x, w, y that is computed. */
typedef struct operands {
  lm_conv_pass pass;
  lm_tensor *x, *w, *y, *bias, *result;
} operands;

static lm_status run_in(const operands *o, const lm_conv_shape *shape, lm_dtype dtype, bool *done_) {
  lm_status status;
  lm_tensor *in[3] = {NULL}, *bias = NULL;
  lm_tensor *const from[3] = {o->x, o->w, o->y};
  for (int i = 0; i < 3; i++) {
    lm_format format = i == 1 ? LM_CONTIGUOUS : LM_CHANNELS_LAST;
    if (from[i] != o->result)
      TRY(prepare(from[i], dtype, format, &in[i]));
    else if (from[i]->dtype == dtype)
      in[i] = lm_retain(from[i]);
    else
      TRY(lm_tensor_empty(dtype, from[i]->device, 4, from[i]->size, format, &in[i]));
  }
  TRY(prepare(o->bias, dtype, LM_CONTIGUOUS, &bias));
  lm_conv_job job = {.pass = o->pass,
                     .shape = *shape,
                     .dtype = dtype,
                     .device = o->result->device,
                     .x = in[0]->data,
                     .w = in[1]->data,
                     .y = in[2]->data,
                     .bias = bias ? bias->data : NULL};
  TRY(convolve(&job, done_));
  for (int i = 0; i < 3; i++)
    if (*done_ && from[i] == o->result && in[i] != o->result) TRY(lm_cpu_copy(in[i], o->result));
done:
  for (int i = 0; i < 3; i++) lm_release(in[i]);
  lm_release(bias);
  return status;
}

static lm_status run(const operands *o, const lm_conv_shape *shape) {
  lm_status status = LM_OK;
  bool done_ = false;
  lm_dtype dtype = (lm_dtype)o->result->dtype;
  if (dtype == LM_BF16 && lm_dnn_has_bf16()) TRY(run_in(o, shape, LM_BF16, &done_));
  if (!done_) TRY(run_in(o, shape, dtype == LM_F64 ? LM_F64 : LM_F32, &done_));
done:
  return status;
}

lm_status lm_cpu_conv2d(const void *args, lm_tensor *const *out) {
  const lm_conv2d_args *a = args;
  lm_status status;
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d, a->x->size, a->weight->size, a->stride, a->padding, a->dilation, a->groups, &s));
  TRY(run(&(operands){LM_CONV_FORWARD, a->x, a->weight, out[0], a->bias, out[0]}, &s));
done:
  return status;
}

lm_status lm_cpu_conv2d_input(const void *args, lm_tensor *const *out) {
  const lm_conv2d_input_args *a = args;
  lm_status status;
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d_input, a->size.v, a->weight->size, a->stride, a->padding, a->dilation, a->groups,
                       &s));
  TRY(run(&(operands){LM_CONV_INPUT, out[0], a->weight, a->grad, NULL, out[0]}, &s));
done:
  return status;
}

lm_status lm_cpu_conv2d_weight(const void *args, lm_tensor *const *out) {
  const lm_conv2d_weight_args *a = args;
  lm_status status;
  lm_conv_shape s;
  TRY(lm_conv_shape_of(LM_OP_conv2d_weight, a->x->size, a->size.v, a->stride, a->padding, a->dilation, a->groups, &s));
  TRY(run(&(operands){LM_CONV_WEIGHT, a->x, out[0], a->grad, NULL, out[0]}, &s));
done:
  return status;
}
