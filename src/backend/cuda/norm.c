/* Runs batch norm and layer norm, with coefficients and partial sums in scratch memory. The kernels are
 * kernels/batch_norm.cu and kernels/layer_norm.cu. */
#include "norm.h"

#include "backend/cuda/cuda.h"
#include "base/message.h"

static lm_values values_of(const lm_tensor *t) {
  if (!t) return (lm_values){0};
  return (lm_values){t->data, t->dtype, t->ndim == 1 ? t->stride[0] : 1};
}

/* Describes x, which the op layer passes contiguous or channels-last. */
static lm_status describe_norm(const lm_tensor *x, lm_norm_shape *s) {
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

/* Returns NaN (no limit) for infinity: no number is at or above NaN, but one may be at infinity. */
static double bound_of(double max) { return max < INFINITY ? max : NAN; }

static size_t partial_bytes(int parts, int64_t c) { return (size_t)parts * 3 * (size_t)c * sizeof(double); }

/* Describes a mask tensor (NULL: none) for kernels: each byte is for 2^shift elements of x. */
static lm_relu_mask mask_of(const lm_tensor *mask, const lm_tensor *x) {
  lm_relu_mask m = {mask ? (uint8_t *)mask->data : NULL, 0};
  while (mask && mask->numel << m.shift < x->numel) m.shift++;
  return m;
}

lm_status lm_cuda_batch_normalize(const lm_batch_normalize_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_norm_shape s;
  void *scratch;
  if (a->x->size[1] == 0) return LM_OK;
  NEED(describe_norm(a->x, &s));
  size_t parts = a->training ? partial_bytes(lm_norm_parts(&s), s.c) : 0;
  NEED(lm_cuda_take(f, parts + 3 * (size_t)s.c * sizeof(double), &scratch));
  lm_batch_plan plan = {
      .training = a->training,
      .relu = a->relu,
      .eps = a->eps,
      .momentum = a->momentum,
      .weight = values_of(a->weight),
      .bias = values_of(a->bias),
      .running_mean = values_of(a->running_mean),
      .running_var = values_of(a->running_var),
      .mean = values_of(out[1]),
      .invstd = values_of(out[2]),
      .partial = a->training ? scratch : NULL,
      .batches = a->training && a->num_batches_tracked ? (int64_t *)a->num_batches_tracked->data : NULL,
      .coefficients = (char *)scratch + parts};
  if (a->training) NEED(LAUNCH("moments", lm_batch_moments(&s, a->x->data, scratch, f->stream)));
  NEED(LAUNCH("plan", lm_batch_plan_forward(&s, &plan, f->stream)));
  if (!a->relu) return LAUNCH("apply", lm_batch_apply(&s, a->x->data, out[0]->data, plan.coefficients, f->stream));
  const void *addend = a->addend ? a->addend->data : NULL;
  return LAUNCH("apply", lm_batch_apply_relu(&s, a->x->data, addend, bound_of(a->max), out[0]->data,
                                             mask_of(out[3], a->x), plan.coefficients, f->stream));
}

lm_status lm_cuda_batch_normalize_backward(const lm_batch_normalize_backward_args *a, lm_tensor *const *out,
                                           lm_cuda_frame *f) {
  const bool saved = a->training || a->relu;
  lm_norm_shape s;
  void *scratch;
  const void *g = a->grad->data, *x = a->x->data;
  if (a->x->size[1] == 0) return LM_OK;
  NEED(describe_norm(a->x, &s));
  size_t parts = partial_bytes(lm_norm_parts(&s), s.c);
  NEED(lm_cuda_take(f, parts + 5 * (size_t)s.c * sizeof(double), &scratch));
  /* Stores the masked gradient if it is a result, or if dx is computed from it alone. */
  void *masked = !a->relu ? NULL : a->y ? out[3]->data : a->training && !a->more ? NULL : out[0]->data;
  lm_batch_plan plan = {.training = a->training,
                        .relu = a->relu && !masked,
                        .eps = a->eps,
                        .max = bound_of(a->max),
                        .weight = values_of(a->weight),
                        .bias = values_of(a->bias),
                        .running_mean = values_of(saved ? NULL : a->running_mean),
                        .running_var = values_of(saved ? NULL : a->running_var),
                        .mean = values_of(saved ? a->save_mean : NULL),
                        .invstd = values_of(saved ? a->save_invstd : NULL),
                        .dweight = values_of(out[1]),
                        .dbias = values_of(out[2]),
                        .partial = scratch,
                        .coefficients = (char *)scratch + parts};
  if (a->relu) {
    const void *y = a->y ? a->y->data : NULL, *more = a->more ? a->more->data : NULL;
    NEED(LAUNCH("sums",
                lm_batch_masked_sums(&s, g, more, x, y, mask_of(a->mask, a->x), masked, &plan, scratch, f->stream)));
    if (masked) g = masked;
  } else {
    NEED(LAUNCH("sums", lm_batch_sums(&s, g, x, saved ? plan.mean : plan.running_mean, scratch, f->stream)));
  }
  NEED(LAUNCH("plan", lm_batch_plan_backward(&s, &plan, f->stream)));
  if (a->training) return LAUNCH("back", lm_batch_back(&s, g, x, out[0]->data, &plan, f->stream));
  /* In evaluation the statistics do not depend on x, so dx = g * scale. */
  return LAUNCH("back", lm_batch_apply(&s, g, out[0]->data, plan.coefficients, f->stream));
}

/* Returns statistics or parameters of any number of dims, contiguous. */
static lm_values dense_values(const lm_tensor *t) { return t ? (lm_values){t->data, t->dtype, 1} : (lm_values){0}; }

/* Returns LM_E_MISSING for RMS norm, whose rows have no mean: there is no kernel here. */
static lm_status check_centered(bool centered) { return centered ? LM_OK : lm_fail_missing(lm_op_running(), "cuda"); }

lm_status lm_cuda_row_norm(const lm_row_norm_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
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
  return job.rows ? LAUNCH("rows", lm_layer_forward(&job, f->stream)) : LM_OK;
}

lm_status lm_cuda_row_norm_backward(const lm_row_norm_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  void *scratch;
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
  NEED(lm_cuda_take(f, partial_bytes(lm_layer_parts(&job), job.d), &scratch));
  if (job.rows > 0) NEED(LAUNCH("rows", lm_layer_backward(&job, f->stream)));
  NEED(LAUNCH("sums", lm_layer_param_sums(&job, scratch, f->stream)));
  return LAUNCH("finish", lm_layer_param_grads(&job, scratch, dense_values(out[1]), dense_values(out[2]), f->stream));
}
