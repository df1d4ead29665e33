/* Computes conv2d and its two gradients by cuDNN, channels-last, as the results are; float32 without TF32 is
 * contiguous. If cuDNN has no engine in one layout, tries the other; if in none, runs our own kernels. Copies operands
 * of another layout, or not aligned to LM_CUDA_ALIGN bytes, for which cuDNN has no good engines. */
#include "conv.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cudnn_choice.h"
#include "backend/cuda/libraries/cudnn_handles.h"
#include "backend/cuda/runtime/context.h"
#include "backend/known/setting.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"

/* ---- our own kernels */

static lm_status launch_conv_sums(const lm_conv_call *o, void *stream) {
  lm_conv_sums job = {.dtype = o->t[0]->dtype,
                      .shape = o->shape,
                      .x = o->t[0]->data,
                      .weight = o->t[1]->data,
                      .y = o->t[2]->data,
                      .bias = o->bias ? o->bias->data : NULL,
                      .bias_stride = o->bias ? o->bias->stride[0] : 0};
  for (int i = 0; i < 4; i++) {
    job.x_stride[i] = o->t[0]->stride[i];
    job.w_stride[i] = o->t[1]->stride[i];
    job.y_stride[i] = o->t[2]->stride[i];
  }
  return LAUNCH("convolution kernel", lm_k_conv(o->pass, &job, stream));
}

/* ---- cuDNN */

static lm_cudnn_key key_of(const lm_conv_call *o, bool channels_last) {
  lm_dtype dtype = o->t[0]->dtype;
  return (lm_cudnn_key){.shape = o->shape,
                        .pass = o->pass,
                        .dtype = dtype,
                        .channels_last = channels_last,
                        .bias = o->bias != NULL,
                        .tf32 = dtype == LM_F32 && lm_setting_get(LM_SETTING_CUDNN_TF32),
                        .deterministic = lm_setting_get(LM_SETTING_CUDNN_DETERMINISTIC),
                        .benchmark = lm_setting_get(LM_SETTING_CUDNN_BENCHMARK)};
}

/* One pass on tensors in the layout of a key. */
typedef struct call {
  lm_cudnn_run run;
  lm_cudnn *cudnn;
  lm_tensor *t[3], *bias;
  bool with_bias; /* true if the plan adds the bias */
} call;

static lm_status execute_conv(const lm_cudnn_run *run, const lm_cudnn_plan *plan, void *workspace) {
  const call *c = (const call *)run;
  return lm_cudnn_convolve(c->cudnn->handle, plan, c->t[0]->data, c->t[1]->data, c->t[2]->data,
                           c->with_bias ? c->bias->data : NULL, workspace);
}

static lm_status search_plans(call *c, const lm_cudnn_key *key, lm_cudnn_plan *best) {
  lm_cudnn_search s;
  lm_cudnn_target target = {.handle = c->cudnn->handle};
  c->with_bias = key->bias;
  return lm_cudnn_choose(&s, lm_cudnn_conv_search(&target, key, &s), &c->run, key->benchmark, best);
}

/* Finds a plan for the key and stores it; computes the result with the plan, except a bias added apart. */
static lm_status find_plan(call *c, const lm_cudnn_key *key, const lm_cudnn_found **out) {
  LM_FREED lm_cudnn_found *found = lm_calloc(1, sizeof *found);
  if (!found) return LM_E_OOM;
  found->key = *key;
  NEED(search_plans(c, key, &found->plan));
  if (key->bias && !found->plan.plan) {
    lm_cudnn_key bare = *key;
    bare.bias = 0;
    found->bias_apart = true;
    NEED(search_plans(c, &bare, &found->plan));
  }
  if (lm_log_on(LM_LOG_OP))
    lm_log(LM_LOG_OP, "cuDNN: %s for x %s, weight %s, %s%s", found->plan.plan ? "a plan" : "no plan",
           lm_shape_of(c->t[0]), lm_shape_of(c->t[1]), key->channels_last ? "channels-last" : "contiguous",
           found->bias_apart ? ", bias apart" : "");
  lm_cache_put(&c->cudnn->plans, &found->head, sizeof *key);
  *out = found;
  found = NULL;
  return LM_OK;
}

/* Adds bias along the channels of y. */
static lm_status add_bias(lm_tensor *y, lm_tensor *bias) {
  lm_pointwise job = {.kernel = LM_OP_add,
                      .compute = y->dtype == LM_F64 ? LM_F64 : LM_F32,
                      .nin = 2,
                      .in = {y, bias},
                      .out = y,
                      .number = {1}};
  for (int i = 0; i < 4; i++) job.in_stride[0][i] = y->stride[i];
  job.in_stride[1][1] = bias->stride[0];
  return lm_cuda_pointwise(&job);
}

/* Computes a pass by cuDNN in one layout; *done_ is false if cuDNN has no plan for it. */
static lm_status run_cudnn(lm_cuda_frame *f, lm_cudnn *cudnn, const lm_conv_call *o, bool channels_last, bool *done_) {
  int written = lm_conv_result(o->pass);
  lm_tensor *result = o->t[written];
  call c = {.run = {result->device, execute_conv}, .cudnn = cudnn, .bias = o->bias};
  lm_cudnn_key key = key_of(o, channels_last);
  const lm_cudnn_found *found = lm_cache_find(&cudnn->plans, &key, sizeof key);
  *done_ = false;
  if (!found && key.benchmark && lm_graph_capturing()) { /* timing runs plans, which a capture would only record */
    key.benchmark = 0;
    found = lm_cache_find(&cudnn->plans, &key, sizeof key);
  }
  if (found && !found->plan.plan) return LM_OK;
  lm_format format = channels_last ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
  for (int i = 0; i < 3; i++) NEED(lm_cuda_lay_out(f, o->t[i], format, i != written, &c.t[i]));
  if (found) {
    c.with_bias = key.bias && !found->bias_apart;
    NEED(lm_cudnn_run_plan(&c.run, &found->plan));
  } else {
    int mode;
    NEED(lm_cuda_relax(&mode)); /* engines may be compiled and loaded by this call */
    lm_status status = find_plan(&c, &key, &found);
    lm_cuda_unrelax(mode);
    if (status != LM_OK) return status;
  }
  if (!found->plan.plan) return LM_OK;
  if (found->bias_apart) NEED(add_bias(c.t[2], o->bias));
  if (c.t[written] != result) NEED(lm_cuda_copy(c.t[written], result));
  *done_ = true;
  return LM_OK;
}

/* Returns true if contiguous tensors are faster: cuDNN's engines for float32 without TF32 are made for them; those for
 * other layouts convert operands and result. */
bool lm_cuda_conv_contiguous(lm_dtype dtype) {
  return dtype == LM_F32 && lm_setting_get(LM_SETTING_CUDNN_ENABLED) && !lm_setting_get(LM_SETTING_CUDNN_TF32);
}

static lm_status convolve_op(lm_cuda_frame *f, lm_op_id op, const void *args, lm_tensor *const *out) {
  lm_conv_call o = lm_conv_call_of(op, args, out);
  bool done_ = false;
  /* With an empty operand there is nothing to sum: the result is 0, or the bias. */
  bool empty = o.t[0]->numel == 0 || o.t[1]->numel == 0 || o.t[2]->numel == 0;
  if (!empty && lm_setting_get(LM_SETTING_CUDNN_ENABLED)) {
    if (o.bias) NEED(lm_cuda_lay_out(f, o.bias, LM_CONTIGUOUS, true, &o.bias));
    bool first = !lm_cuda_conv_contiguous(out[0]->dtype);
    lm_cudnn *cudnn;
    NEED(lm_cudnn_take(f, &cudnn));
    NEED(run_cudnn(f, cudnn, &o, first, &done_));
    if (!done_) NEED(run_cudnn(f, cudnn, &o, !first, &done_));
  }
  return done_ ? LM_OK : launch_conv_sums(&o, f->stream);
}

#define X(name)                                                                                  \
  lm_status lm_cuda_##name(const lm_##name##_args *a, lm_tensor *const *out, lm_cuda_frame *f) { \
    return convolve_op(f, LM_OP_##name, a, out);                                                 \
  }
X(conv2d) X(conv2d_input) X(conv2d_weight)
