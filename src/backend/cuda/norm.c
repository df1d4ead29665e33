/* Batch norm and layer norm: x as memory, coefficients and parts in scratch memory. The kernels are
 * kernels/batch_norm.cu and kernels/layer_norm.cu. */
#include "norm.h"

#include "backend/cuda/cuda.h"
#include "base/message.h"

static lm_values values_of(const lm_tensor *t) {
  if (!t) return (lm_values){0};
  return (lm_values){t->data, t->dtype, t->ndim == 1 ? t->stride[0] : 1};
}

/* As the op layer hands x over: contiguous or channels-last. */
static lm_status shape_of(const lm_tensor *x, lm_norm_shape *s) {
  int64_t images = x->size[0], c = x->size[1];
  *s = (lm_norm_shape){.dtype = x->dtype, .c = c, .processors = lm_cuda_facts_of(x->device)->processors};
  s->count = c ? x->numel / c : 0;
  bool interleaved = x->ndim == 4 && lm_is_channels_last(x) && !lm_is_contiguous(x);
  s->run = interleaved || images == 0 || s->count == 0 ? 1 : s->count / images;
  if (c > INT32_MAX / 64 || s->run > (int64_t)1 << 30)
    return lm_fail_value(lm_op_running(), "x", "at most 2^25 channels and 2^30 elements a plane on CUDA",
                         lm_shape_of(x));
  return LM_OK;
}

static size_t partial_bytes(int parts, int64_t c) { return (size_t)parts * 3 * (size_t)c * sizeof(double); }

lm_status lm_cuda_batch_normalize(const void *args, lm_tensor *const *out) {
  const lm_batch_normalize_args *a = args;
  lm_status status = LM_OK;
  lm_norm_shape s;
  void *stream, *scratch = NULL;
  size_t bytes = 0;
  if (a->x->size[1] == 0) return LM_OK;
  TRY(shape_of(a->x, &s));
  size_t parts = a->training ? partial_bytes(lm_norm_parts(&s), s.c) : 0;
  bytes = parts + 3 * (size_t)s.c * sizeof(double);
  TRY(lm_cuda_enter(a->x->device, &stream));
  TRY(lm_cuda_scratch(a->x->device, bytes, &scratch));
  lm_batch_plan plan = {.training = a->training,
                        .eps = a->eps,
                        .momentum = a->momentum,
                        .weight = values_of(a->weight),
                        .bias = values_of(a->bias),
                        .running_mean = values_of(a->running_mean),
                        .running_var = values_of(a->running_var),
                        .mean = values_of(out[1]),
                        .invstd = values_of(out[2]),
                        .partial = a->training ? scratch : NULL,
                        .coefficients = (char *)scratch + parts};
  if (a->training) TRY(LAUNCH("moments", lm_batch_moments(&s, a->x->data, scratch, stream)));
  TRY(LAUNCH("plan", lm_batch_plan_forward(&s, &plan, stream)));
  if (a->relu) {
    const void *addend = a->addend ? a->addend->data : NULL;
    TRY(LAUNCH("apply", lm_batch_apply_relu(&s, a->x->data, addend, out[0]->data, plan.coefficients, stream)));
  } else {
    TRY(LAUNCH("apply", lm_batch_apply(&s, a->x->data, out[0]->data, plan.coefficients, stream)));
  }
done:
  if (scratch) lm_cuda_scratch_done(a->x->device, scratch, bytes);
  return status;
}

/* g: the gradient of what batch norm gave. Of the plan what says how; the rest is filled in. */
static lm_status batch_backward(const lm_norm_shape *s, lm_batch_plan plan, const void *g, const lm_tensor *x,
                                lm_tensor *const *out, void *stream) {
  lm_status status = LM_OK;
  void *scratch = NULL;
  size_t parts = partial_bytes(lm_norm_parts(s), s->c), bytes = parts + 4 * (size_t)s->c * sizeof(double);
  TRY(lm_cuda_scratch(x->device, bytes, &scratch));
  plan.dweight = values_of(out[1]), plan.dbias = values_of(out[2]);
  plan.partial = scratch;
  plan.coefficients = (char *)scratch + parts;
  TRY(LAUNCH("sums", lm_batch_sums(s, g, x->data, plan.mean.data ? plan.mean : plan.running_mean, scratch, stream)));
  TRY(LAUNCH("plan", lm_batch_plan_backward(s, &plan, stream)));
  if (plan.training) {
    TRY(LAUNCH("back", lm_batch_back(s, g, x->data, out[0]->data, plan.coefficients, stream)));
  } else { /* statistics that do not depend on x: dx = g * scale */
    TRY(LAUNCH("back", lm_batch_apply(s, g, out[0]->data, plan.coefficients, stream)));
  }
done:
  if (scratch) lm_cuda_scratch_done(x->device, scratch, bytes);
  return status;
}

lm_status lm_cuda_batch_normalize_backward(const void *args, lm_tensor *const *out) {
  const lm_batch_normalize_backward_args *a = args;
  const bool saved = a->training || a->relu;
  lm_status status = LM_OK;
  lm_norm_shape s;
  void *stream, *scratch = NULL;
  const void *g = a->grad->data;
  size_t values = 0, bytes = 0;
  if (a->x->size[1] == 0) return LM_OK;
  TRY(shape_of(a->x, &s));
  TRY(lm_cuda_enter(a->x->device, &stream));
  lm_batch_plan plan = {.training = a->training,
                        .eps = a->eps,
                        .weight = values_of(a->weight),
                        .bias = values_of(a->bias),
                        .running_mean = values_of(saved ? NULL : a->running_mean),
                        .running_var = values_of(saved ? NULL : a->running_var),
                        .mean = values_of(saved ? a->save_mean : NULL),
                        .invstd = values_of(saved ? a->save_invstd : NULL)};
  if (a->relu) { /* the gradient where relu's result is above 0 */
    values = a->y ? 0 : lm_round_up((size_t)a->x->numel * lm_dtype_size(a->x->dtype), 16);
    bytes = values + 3 * (size_t)s.c * sizeof(double);
    TRY(lm_cuda_scratch(a->x->device, bytes, &scratch));
    void *masked = a->y ? out[3]->data : scratch;
    plan.coefficients = (char *)scratch + values;
    TRY(LAUNCH("plan", lm_batch_plan_again(&s, &plan, stream)));
    TRY(LAUNCH("mask", lm_batch_mask(&s, g, a->x->data, a->y ? a->y->data : NULL, masked, plan.coefficients, stream)));
    g = masked;
  }
  TRY(batch_backward(&s, plan, g, a->x, out, stream));
done:
  if (scratch) lm_cuda_scratch_done(a->x->device, scratch, bytes);
  return status;
}

/* Statistics and parameters of any number of dims, contiguous. */
static lm_values dense_values(const lm_tensor *t) { return t ? (lm_values){t->data, t->dtype, 1} : (lm_values){0}; }

/* Rows without a mean have no kernel here. */
static lm_status check_centered(bool centered) { return centered ? LM_OK : lm_fail_missing(lm_op_running(), "cuda"); }

lm_status lm_cuda_row_norm(const void *args, lm_tensor *const *out) {
  const lm_row_norm_args *a = args;
  void *stream;
  NEED(check_centered(a->centered));
  lm_layer_job job = {.dtype = a->x->dtype,
                      .rows = out[1]->numel,
                      .d = lm_sizes_product(&a->normalized_shape),
                      .x = a->x->data,
                      .y = out[0]->data,
                      .weight = dense_values(a->weight),
                      .bias = dense_values(a->bias),
                      .mean = dense_values(out[1]),
                      .rstd = dense_values(out[2]),
                      .eps = a->eps,
                      .processors = lm_cuda_facts_of(a->x->device)->processors};
  if (job.rows == 0) return LM_OK;
  NEED(lm_cuda_enter(a->x->device, &stream));
  return LAUNCH("rows", lm_layer_forward(&job, stream));
}

lm_status lm_cuda_row_norm_backward(const void *args, lm_tensor *const *out) {
  const lm_row_norm_backward_args *a = args;
  lm_status status = LM_OK;
  void *stream, *scratch = NULL;
  size_t bytes = 0;
  NEED(check_centered(a->save_mean != NULL));
  lm_layer_job job = {.dtype = a->x->dtype,
                      .rows = a->save_rstd->numel,
                      .d = lm_sizes_product(&a->normalized_shape),
                      .g = a->grad->data,
                      .x = a->x->data,
                      .y = out[0]->data,
                      .weight = dense_values(a->weight),
                      .mean = dense_values(a->save_mean),
                      .rstd = dense_values(a->save_rstd),
                      .processors = lm_cuda_facts_of(a->x->device)->processors};
  if (job.d == 0) return LM_OK;
  bytes = partial_bytes(lm_layer_parts(&job), job.d);
  TRY(lm_cuda_enter(a->x->device, &stream));
  TRY(lm_cuda_scratch(a->x->device, bytes, &scratch));
  if (job.rows > 0) TRY(LAUNCH("rows", lm_layer_backward(&job, stream)));
  TRY(LAUNCH("sums", lm_layer_param_sums(&job, scratch, stream)));
  TRY(LAUNCH("finish", lm_layer_param_grads(&job, scratch, dense_values(out[1]), dense_values(out[2]), stream)));
done:
  if (scratch) lm_cuda_scratch_done(a->x->device, scratch, bytes);
  return status;
}
