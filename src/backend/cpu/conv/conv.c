/* Computes conv2d and its gradients: brings operands into the layout and type that kernels take, and chooses among
 * them. LM_CONV=direct, winograd, onednn or auto (Winograd where lm_wino_is_faster) in the environment: direct
 * convolution has a tenth to a half of Winograd's rounding error; onednn is for comparison. */
#include "backend/cpu/conv/conv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/onednn/onednn.h"
#include "base/environment_variable.h"
#include "base/log.h"
#include "base/message.h"
#include "op_args_convolution.h"
#include "op_ids.h"

typedef enum mode { AUTO, DIRECT, WINOGRAD, ONEDNN } mode;
static mode chosen = AUTO;

static void read_mode(void) {
  static const char *const names[] = {"auto", "direct", "winograd", "onednn"};
  const char *wanted = lm_variable_get(LM_VAR_CONV);
  for (int i = 0; wanted && i < 4; i++)
    if (!strcmp(wanted, names[i])) chosen = (mode)i;
}

static void log_choice(const char *how, const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  if (lm_log_on(LM_LOG_OP))
    lm_log(LM_LOG_OP, "%s: x [%lld, %lld, %lld, %lld], %lld channels out, pass %d", how, (long long)s->n,
           (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->k, (int)job->pass);
}

/* Returns true if runs of channels are too short for a product of gathered rows: oneDNN has code for these.
 * scripts/bench/convolutions has the table of measurements. */
static bool is_narrow(const lm_conv_job *job) {
  enum { NARROW = 20, NARROW_GROUP = 32 };
  const lm_conv_shape *s = &job->shape;
  if (job->dtype != LM_F32) return false;
  if (s->groups > 1) return lm_min(s->c, s->k) / s->groups < NARROW_GROUP;
  return (job->pass == LM_CONV_INPUT ? s->k : s->c) < NARROW && s->kh * s->kw > 1;
}

/* Runs a kernel for channels-last x and y, contiguous w, all of job->dtype. Clears *done_ if bfloat16 has none. */
static lm_status convolve(const lm_conv_job *job, bool *done_) {
  const lm_conv_shape *s = &job->shape;
  const bool empty = s->n * s->c * s->k * s->h * s->w == 0;
  *done_ = true;
  if (chosen != DIRECT && chosen != ONEDNN && !job->x_planar && lm_wino_is_supported(job) &&
      (chosen == WINOGRAD || lm_wino_is_faster(job))) {
    log_choice("Winograd", job);
    NEED(lm_wino_conv(job));
    return job->finishes ? lm_conv_finish_all(job) : LM_OK;
  }
  if (chosen != ONEDNN && lm_product_takes(job)) {
    log_choice("matrix product", job);
    return lm_product_conv(job);
  }
  if (chosen != ONEDNN && lm_depthwise_takes(job)) {
    log_choice("depthwise", job);
    return lm_depthwise_conv(job);
  }
  if (job->dtype == LM_BF16 || (chosen == ONEDNN ? job->dtype == LM_F32 : chosen != DIRECT && is_narrow(job))) {
    *done_ = false;
    if (!empty) NEED(lm_dnn_conv(job, done_));
    if (*done_ && job->finishes) NEED(lm_conv_finish_all(job));
    if (*done_ || job->dtype == LM_BF16) return LM_OK;
    *done_ = true;
  }
  if (chosen != ONEDNN && lm_scattered_takes(job)) {
    log_choice("scattered", job);
    return lm_scattered_conv(job);
  }
  log_choice("direct", job);
  return lm_direct_conv(job);
}

/* Sets *out to t, retained, or to a copy of it in another dtype or layout; the caller releases it. */
static lm_status prepare_conv_tensor(lm_tensor *t, lm_dtype dtype, lm_format format, lm_tensor **out) {
  if (!t) return LM_OK;
  if (t->dtype == dtype && (format == LM_CHANNELS_LAST ? lm_is_channels_last(t) : lm_is_contiguous(t))) {
    *out = lm_retain(t);
    return LM_OK;
  }
  NEED(lm_tensor_empty(dtype, t->device, t->ndim, t->size, format, out));
  return lm_cpu_copy(t, *out);
}

static lm_status convolve_in(const lm_conv_call *c, lm_dtype dtype, bool *done_) {
  LM_OWNED *x = NULL, *w = NULL, *y = NULL, *bias = NULL, *other = NULL;
  lm_tensor **in[] = {&x, &w, &y};
  const int written = lm_conv_result(c->pass);
  lm_tensor *result = c->t[written];
  lm_conv_job job = {.pass = c->pass, .shape = c->shape, .dtype = dtype};
  /* Planes are read in place where that is possible. */
  const bool planar = written != 0 && chosen != ONEDNN && lm_is_contiguous(c->t[0]) && !lm_is_channels_last(c->t[0]);
  job.x_planar = planar;
  job.x_planar = planar && (lm_depthwise_takes(&job) || (!c->bias && lm_product_takes(&job)));
  if (written == 0 && chosen != ONEDNN) job.x_planar = lm_product_takes_window(&job);
  for (int i = 0; i < 3; i++) {
    lm_format format = i == 1 || (i == 0 && job.x_planar) ? LM_CONTIGUOUS : LM_CHANNELS_LAST;
    if (i != written)
      NEED(prepare_conv_tensor(c->t[i], dtype, format, in[i]));
    else if (result->dtype == dtype && (!job.x_planar || i != 0 || lm_is_contiguous(result)))
      *in[i] = lm_retain(result);
    else
      NEED(lm_tensor_empty(dtype, result->device, 4, result->size, format, in[i]));
  }
  NEED(prepare_conv_tensor(c->bias, dtype, LM_CONTIGUOUS, &bias));
  job.x = x->data, job.w = w->data, job.y = y->data;
  job.weight = w;
  job.bias = bias ? bias->data : NULL;
  NEED(prepare_conv_tensor(c->other, dtype, LM_CHANNELS_LAST, &other));
  job.end = (lm_epilogue){job.y, c->shape.k, other ? (const float *)other->data : NULL, c->activation, c->low, c->high};
  job.finishes = c->finishes;
  NEED(convolve(&job, done_));
  return *done_ && *in[written] != result ? lm_cpu_copy(*in[written], result) : LM_OK;
}

static lm_status convolve_op(lm_op_id op, const void *args, lm_tensor *const *out) {
  const lm_conv_call call = lm_conv_call_of(op, args, out);
  bool done_ = false;
  lm_dtype dtype = out[0]->dtype;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_mode);
  if (dtype == LM_BF16 && lm_dnn_has_bf16()) NEED(convolve_in(&call, LM_BF16, &done_));
  return done_ ? LM_OK : convolve_in(&call, dtype == LM_F64 ? LM_F64 : LM_F32, &done_);
}

lm_status lm_cpu_conv2d(const lm_conv2d_args *a, lm_tensor *const *out) { return convolve_op(LM_OP_conv2d, a, out); }
lm_status lm_cpu_conv2d_with_epilogue(const lm_conv2d_with_epilogue_args *a, lm_tensor *const *out) {
  if (out[0]->dtype != LM_F32)
    return lm_fail_dtype("conv2d_with_epilogue", "x", "float32", lm_dtype_name(out[0]->dtype));
  return convolve_op(LM_OP_conv2d_with_epilogue, a, out);
}
lm_status lm_cpu_conv2d_input(const lm_conv2d_input_args *a, lm_tensor *const *out) {
  return convolve_op(LM_OP_conv2d_input, a, out);
}
lm_status lm_cpu_conv2d_weight(const lm_conv2d_weight_args *a, lm_tensor *const *out) {
  return convolve_op(LM_OP_conv2d_weight, a, out);
}
