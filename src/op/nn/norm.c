/* Batch norm, layer norm and their kin: checks, results, and the statistics kept for the gradient. */
#include "base/message.h"
#include "op/input_layout.h"

/* Statistics of half types are float32: a mean needs more digits than its values. */
static lm_dtype stat_dtype(const lm_tensor *x) { return x->dtype == LM_F64 ? LM_F64 : LM_F32; }

/* A parameter or statistic of x: in x's dtype, or float32 beside half types. NULL is fine. */
static lm_status check_param(lm_op_id op, const char *arg, const lm_tensor *t, const lm_tensor *x, int ndim,
                             const int64_t *size) {
  if (!t) return LM_OK;
  bool fits = t->ndim == ndim;
  for (int d = 0; fits && d < ndim; d++) fits = t->size[d] == size[d];
  if (!fits)
    return lm_fail_shape(lm_ops[op].name, arg, lm_text("%s for x of %s", lm_shape_text(ndim, size), lm_shape_of(x)),
                         lm_shape_of(t));
  if (t->dtype != x->dtype && t->dtype != stat_dtype(x))
    return lm_fail_dtype(lm_ops[op].name, arg,
                         lm_text("%s for x of %s", lm_dtype_name(stat_dtype(x)), lm_dtype_name(x->dtype)),
                         lm_dtype_name(t->dtype));
  return LM_OK;
}

static lm_status as_contiguous(lm_tensor *t, lm_tensor **out) {
  *out = NULL;
  return t ? lm_to_layout(t, LM_CONTIGUOUS, out) : LM_OK;
}

/* An empty 1-d x, which PyTorch takes too, has none. */
static int64_t channels_of(const lm_tensor *x) { return x->ndim > 1 ? x->size[1] : 0; }

static lm_status check_batch(lm_op_id op, const lm_tensor *x, const lm_tensor *running_mean,
                             const lm_tensor *running_var, const lm_tensor *weight, const lm_tensor *bias) {
  lm_status status = LM_OK;
  TRY(lm_check_float(op, "x", x));
  const int64_t channels = channels_of(x);
  if (x->ndim < 2 && !(x->ndim == 1 && x->numel == 0)) {
    status = lm_fail_shape(lm_ops[op].name, "x", "[N, C] or [N, C, ...]", lm_shape_of(x));
    goto done;
  }
  TRY(lm_check_same_device(op, 5,
                           (lm_tensor *[]){(lm_tensor *)x, (lm_tensor *)running_mean, (lm_tensor *)running_var,
                                           (lm_tensor *)weight, (lm_tensor *)bias}));
  TRY(check_param(op, "running_mean", running_mean, x, 1, &channels));
  TRY(check_param(op, "running_var", running_var, x, 1, &channels));
  TRY(check_param(op, "weight", weight, x, 1, &channels));
  TRY(check_param(op, "bias", bias, x, 1, &channels));
done:
  return status;
}

static lm_status check_like_x(lm_op_id op, const char *arg, const lm_tensor *t, const lm_tensor *x) {
  if (t->dtype != x->dtype || !lm_same_shape(t, x))
    return lm_fail_value(lm_ops[op].name, arg, lm_text("%s %s as x", lm_dtype_name(x->dtype), lm_shape_of(x)),
                         lm_text("%s %s", lm_dtype_name(t->dtype), lm_shape_of(t)));
  return lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)x, (lm_tensor *)t});
}

static lm_status zero(lm_tensor *t) {
  lm_tensor *zeroed = NULL;
  lm_status status = t ? lm_op_zero_(&(lm_zero__args){.x = t}, &zeroed) : LM_OK;
  lm_release(zeroed);
  return status;
}

/* batch_norm, or batch_norm_relu, whose gradient has mean and inverse deviation from here when not training too. */
static lm_status batch_forward(lm_op_id op, const lm_batch_norm_relu_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  const bool relu = op == LM_OP_batch_norm_relu;
  lm_tensor *x = NULL, *weight = NULL, *bias = NULL, *addend = NULL, *y = NULL, *mean = NULL, *invstd = NULL;
  TRY(check_batch(op, a->x, a->running_mean, a->running_var, a->weight, a->bias));
  int64_t channels = channels_of(a->x);
  if (a->training && a->x->numel == channels && channels > 0) {
    status =
        lm_fail(LM_E_SHAPE,
                "%s: x must have more than one value per channel in training, got %s; use a larger batch or :eval()",
                lm_ops[op].name, lm_shape_of(a->x));
    goto done;
  }
  if (!a->training && (!a->running_mean || !a->running_var)) {
    status = lm_fail_value(lm_ops[op].name, "running_mean and running_var", "tensors when not training", "nil");
    goto done;
  }
  if (a->training && a->running_mean) TRY(lm_check_writable(op, a->running_mean));
  if (a->training && a->running_var) TRY(lm_check_writable(op, a->running_var));

  TRY(lm_to_layout(a->x, LM_PRESERVE, &x));
  TRY(as_contiguous(a->weight, &weight));
  TRY(as_contiguous(a->bias, &bias));
  if (a->addend) {
    TRY(check_like_x(op, "addend", a->addend, x));
    TRY(lm_to_layout_like(a->addend, x, &addend));
  }
  TRY(lm_tensor_empty_like(x, x->dtype, x->device, &y));
  if (a->training || relu) {
    TRY(lm_tensor_empty(stat_dtype(x), x->device, 1, &channels, LM_CONTIGUOUS, &mean));
    TRY(lm_tensor_empty(stat_dtype(x), x->device, 1, &channels, LM_CONTIGUOUS, &invstd));
  }
  lm_batch_norm_relu_args job = *a;
  job.x = x, job.weight = weight, job.bias = bias, job.addend = addend;
  lm_batch_norm_args plain = {.x = x,
                              .running_mean = a->running_mean,
                              .running_var = a->running_var,
                              .weight = weight,
                              .bias = bias,
                              .training = a->training,
                              .momentum = a->momentum,
                              .eps = a->eps};
  if (x->numel > 0) {
    TRY(lm_dispatch(op, x->device, relu ? (const void *)&job : &plain, (lm_tensor *[]){y, mean, invstd}));
  } else { /* no values, no statistics: as in PyTorch the running ones stay, and these are 0 */
    TRY(zero(mean));
    TRY(zero(invstd));
  }
  if (a->training && a->running_mean) lm_bump(a->running_mean, op);
  if (a->training && a->running_var) lm_bump(a->running_var, op);
  out[0] = lm_retain(y);
  out[1] = lm_retain(mean);
  out[2] = lm_retain(invstd);
done:
  lm_release(x);
  lm_release(weight);
  lm_release(bias);
  lm_release(addend);
  lm_release(y);
  lm_release(mean);
  lm_release(invstd);
  return status;
}

lm_status lm_op_batch_norm(const lm_batch_norm_args *a, lm_tensor **out) {
  const lm_batch_norm_relu_args same = {.x = a->x,
                                        .running_mean = a->running_mean,
                                        .running_var = a->running_var,
                                        .weight = a->weight,
                                        .bias = a->bias,
                                        .training = a->training,
                                        .momentum = a->momentum,
                                        .eps = a->eps};
  return batch_forward(LM_OP_batch_norm, &same, out);
}

lm_status lm_op_batch_norm_relu(const lm_batch_norm_relu_args *a, lm_tensor **out) {
  return batch_forward(LM_OP_batch_norm_relu, a, out);
}

lm_status lm_op_batch_norm_backward(const lm_batch_norm_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_batch_norm_backward;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *grad = NULL, *weight = NULL, *mean = NULL, *invstd = NULL;
  lm_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
  TRY(check_batch(op, a->x, a->running_mean, a->running_var, a->weight, NULL));
  TRY(check_like_x(op, "grad", a->grad, a->x));
  int64_t channels = channels_of(a->x);
  TRY(check_param(op, "save_mean", a->save_mean, a->x, 1, &channels));
  TRY(check_param(op, "save_invstd", a->save_invstd, a->x, 1, &channels));
  TRY(lm_check_same_device(op, 4, (lm_tensor *[]){a->x, a->grad, a->save_mean, a->save_invstd}));
  if (a->training ? !a->save_mean || !a->save_invstd : !a->running_mean || !a->running_var) {
    status =
        lm_fail_value("batch_norm_backward", a->training ? "save_mean and save_invstd" : "running_mean and running_var",
                      "tensors", "nil");
    goto done;
  }
  TRY(lm_to_layout(a->x, LM_PRESERVE, &x));
  TRY(lm_to_layout_like(a->grad, x, &grad));
  TRY(as_contiguous(a->weight, &weight));
  TRY(as_contiguous(a->save_mean, &mean));
  TRY(as_contiguous(a->save_invstd, &invstd));
  lm_dtype param = weight ? weight->dtype : stat_dtype(x);
  TRY(lm_tensor_empty_like(x, x->dtype, x->device, &dx));
  TRY(lm_tensor_empty(param, x->device, 1, &channels, LM_CONTIGUOUS, &dweight));
  TRY(lm_tensor_empty(param, x->device, 1, &channels, LM_CONTIGUOUS, &dbias));
  lm_batch_norm_backward_args job = *a;
  job.x = x, job.grad = grad, job.weight = weight, job.save_mean = mean, job.save_invstd = invstd;
  if (x->numel > 0) {
    TRY(lm_dispatch(op, x->device, &job, (lm_tensor *[]){dx, dweight, dbias}));
  } else {
    TRY(zero(dweight));
    TRY(zero(dbias));
  }
  out[0] = lm_retain(dx);
  out[1] = lm_retain(dweight);
  out[2] = lm_retain(dbias);
done:
  lm_release(x);
  lm_release(grad);
  lm_release(weight);
  lm_release(mean);
  lm_release(invstd);
  lm_release(dx);
  lm_release(dweight);
  lm_release(dbias);
  return status;
}

lm_status lm_op_batch_norm_relu_backward(const lm_batch_norm_relu_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_batch_norm_relu_backward;
  lm_status status = LM_OK;
  lm_tensor *in[7] = {NULL}, *made[4] = {NULL}, *x = a->x;
  const int64_t channels = channels_of(x);
  TRY(check_batch(op, x, NULL, NULL, a->weight, a->bias));
  TRY(check_param(op, "save_mean", a->save_mean, x, 1, &channels));
  TRY(check_param(op, "save_invstd", a->save_invstd, x, 1, &channels));
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){x, a->save_mean, a->save_invstd}));
  TRY(check_like_x(op, "grad", a->grad, x));
  if (a->y) TRY(check_like_x(op, "y", a->y, x));
  TRY(lm_to_layout(x, LM_PRESERVE, &in[0]));
  TRY(lm_to_layout_like(a->grad, in[0], &in[1]));
  if (a->y) TRY(lm_to_layout_like(a->y, in[0], &in[2]));
  TRY(as_contiguous(a->weight, &in[3]));
  TRY(as_contiguous(a->bias, &in[4]));
  TRY(as_contiguous(a->save_mean, &in[5]));
  TRY(as_contiguous(a->save_invstd, &in[6]));
  lm_dtype param = a->weight ? a->weight->dtype : stat_dtype(x);
  TRY(lm_tensor_empty_like(in[0], x->dtype, x->device, &made[0]));
  TRY(lm_tensor_empty(param, x->device, 1, &channels, LM_CONTIGUOUS, &made[1]));
  TRY(lm_tensor_empty(param, x->device, 1, &channels, LM_CONTIGUOUS, &made[2]));
  if (a->y) TRY(lm_tensor_empty_like(in[0], x->dtype, x->device, &made[3]));
  lm_batch_norm_relu_backward_args job = {in[1], in[0], in[2], in[3], in[4], in[5], in[6], a->training, a->eps};
  if (x->numel > 0) {
    TRY(lm_dispatch(op, x->device, &job, made));
  } else {
    TRY(zero(made[1]));
    TRY(zero(made[2]));
  }
  for (int i = 0; i < 4; i++) out[i] = lm_retain(made[i]);
done:
  for (int i = 0; i < 7; i++) lm_release(in[i]);
  for (int i = 0; i < 4; i++) lm_release(made[i]);
  return status;
}

/* x [N, C, ...] with something in it, its channels in groups. */
static lm_status check_grouped(lm_op_id op, const lm_tensor *x, int64_t groups, const lm_tensor *weight,
                               const lm_tensor *bias) {
  lm_status status = LM_OK;
  TRY(lm_check_float(op, "x", x));
  if (x->ndim < 2 || x->numel == 0)
    TRY(lm_fail_shape(lm_ops[op].name, "x", "[N, C, ...] without an empty dim", lm_shape_of(x)));
  if (groups < 1) TRY(lm_fail_int(lm_ops[op].name, "groups", "at least 1", groups));
  if (x->size[1] % groups != 0) TRY(lm_fail_divisible(lm_ops[op].name, "channels of x", x->size[1], "groups", groups));
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){(lm_tensor *)x, (lm_tensor *)weight, (lm_tensor *)bias}));
  TRY(check_param(op, "weight", weight, x, 1, &x->size[1]));
  TRY(check_param(op, "bias", bias, x, 1, &x->size[1]));
done:
  return status;
}

lm_status lm_op_grouped_norm(const lm_grouped_norm_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_grouped_norm;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *weight = NULL, *bias = NULL, *made[3] = {NULL};
  TRY(check_grouped(op, a->x, a->num_groups, a->weight, a->bias));
  int64_t groups = a->x->size[0] * a->num_groups;
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(as_contiguous(a->weight, &weight));
  TRY(as_contiguous(a->bias, &bias));
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &made[0]));
  TRY(lm_tensor_empty(stat_dtype(x), x->device, 1, &groups, LM_CONTIGUOUS, &made[1]));
  TRY(lm_tensor_empty(stat_dtype(x), x->device, 1, &groups, LM_CONTIGUOUS, &made[2]));
  lm_grouped_norm_args job = {x, a->num_groups, weight, bias, a->eps};
  TRY(lm_dispatch_or_host(op, x->device, &job, made));
  for (int i = 0; i < 3; i++) out[i] = lm_retain(made[i]);
done:
  lm_release(x);
  lm_release(weight);
  lm_release(bias);
  for (int i = 0; i < 3; i++) lm_release(made[i]);
  return status;
}

lm_status lm_op_grouped_norm_backward(const lm_grouped_norm_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_grouped_norm_backward;
  lm_status status = LM_OK;
  lm_tensor *in[5] = {NULL}, *made[3] = {NULL}, *x = a->x;
  TRY(check_grouped(op, x, a->num_groups, a->weight, NULL));
  TRY(check_like_x(op, "grad", a->grad, x));
  int64_t groups = x->size[0] * a->num_groups;
  TRY(check_param(op, "save_mean", a->save_mean, x, 1, &groups));
  TRY(check_param(op, "save_invstd", a->save_invstd, x, 1, &groups));
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){x, a->save_mean, a->save_invstd}));
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &in[0]));
  TRY(lm_to_layout(x, LM_CONTIGUOUS, &in[1]));
  TRY(as_contiguous(a->save_mean, &in[2]));
  TRY(as_contiguous(a->save_invstd, &in[3]));
  TRY(as_contiguous(a->weight, &in[4]));
  lm_dtype param = a->weight ? a->weight->dtype : stat_dtype(x);
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &made[0]));
  TRY(lm_tensor_empty(param, x->device, 1, &x->size[1], LM_CONTIGUOUS, &made[1]));
  TRY(lm_tensor_empty(param, x->device, 1, &x->size[1], LM_CONTIGUOUS, &made[2]));
  lm_grouped_norm_backward_args job = {in[0], in[1], a->num_groups, in[2], in[3], in[4], a->eps};
  TRY(lm_dispatch_or_host(op, x->device, &job, made));
  for (int i = 0; i < 3; i++) out[i] = lm_retain(made[i]);
done:
  for (int i = 0; i < 5; i++) lm_release(in[i]);
  for (int i = 0; i < 3; i++) lm_release(made[i]);
  return status;
}

/* normalized_shape must be x's last sizes. */
static lm_status check_layer(lm_op_id op, const lm_tensor *x, const lm_ints *shape, const lm_tensor *weight,
                             const lm_tensor *bias) {
  lm_status status = LM_OK;
  TRY(lm_check_float(op, "x", x));
  if (shape->n < 1) {
    status = lm_fail_value(lm_ops[op].name, "normalized_shape", "at least one size", "{}");
    goto done;
  }
  bool fits = x->ndim >= shape->n;
  for (int d = 0; fits && d < shape->n; d++) fits = x->size[x->ndim - shape->n + d] == shape->v[d];
  if (!fits) {
    status = lm_fail_shape(lm_ops[op].name, "x",
                           lm_text("[*, normalized_shape] with normalized_shape %s", lm_shape_text(shape->n, shape->v)),
                           lm_shape_of(x));
    goto done;
  }
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){(lm_tensor *)x, (lm_tensor *)weight, (lm_tensor *)bias}));
  TRY(check_param(op, "weight", weight, x, shape->n, shape->v));
  TRY(check_param(op, "bias", bias, x, shape->n, shape->v));
done:
  return status;
}

/* x's sizes with 1 for each normalized dim. */
static void stat_sizes(const lm_tensor *x, int normalized, int64_t *size) {
  for (int d = 0; d < x->ndim; d++) size[d] = d < x->ndim - normalized ? x->size[d] : 1;
}

lm_status lm_op_layer_norm(const lm_layer_norm_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_layer_norm;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *weight = NULL, *bias = NULL, *y = NULL, *mean = NULL, *rstd = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_layer(op, a->x, &a->normalized_shape, a->weight, a->bias));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(as_contiguous(a->weight, &weight));
  TRY(as_contiguous(a->bias, &bias));
  stat_sizes(x, a->normalized_shape.n, size);
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &y));
  TRY(lm_tensor_empty(stat_dtype(x), x->device, x->ndim, size, LM_CONTIGUOUS, &mean));
  TRY(lm_tensor_empty(stat_dtype(x), x->device, x->ndim, size, LM_CONTIGUOUS, &rstd));
  lm_layer_norm_args job = *a;
  job.x = x, job.weight = weight, job.bias = bias;
  TRY(lm_dispatch(op, x->device, &job, (lm_tensor *[]){y, mean, rstd}));
  out[0] = lm_retain(y);
  out[1] = lm_retain(mean);
  out[2] = lm_retain(rstd);
done:
  lm_release(x);
  lm_release(weight);
  lm_release(bias);
  lm_release(y);
  lm_release(mean);
  lm_release(rstd);
  return status;
}

lm_status lm_op_layer_norm_backward(const lm_layer_norm_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_layer_norm_backward;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *grad = NULL, *weight = NULL, *mean = NULL, *rstd = NULL;
  lm_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
  const lm_ints *shape = &a->normalized_shape;
  int64_t size[LM_MAX_DIMS];
  TRY(check_layer(op, a->x, shape, a->weight, NULL));
  TRY(check_like_x(op, "grad", a->grad, a->x));
  stat_sizes(a->x, shape->n, size);
  TRY(check_param(op, "save_mean", a->save_mean, a->x, a->x->ndim, size));
  TRY(check_param(op, "save_rstd", a->save_rstd, a->x, a->x->ndim, size));
  TRY(lm_check_same_device(op, 4, (lm_tensor *[]){a->x, a->grad, a->save_mean, a->save_rstd}));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &grad));
  TRY(as_contiguous(a->weight, &weight));
  TRY(as_contiguous(a->save_mean, &mean));
  TRY(as_contiguous(a->save_rstd, &rstd));
  lm_dtype param = weight ? weight->dtype : stat_dtype(x);
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &dx));
  TRY(lm_tensor_empty(param, x->device, shape->n, shape->v, LM_CONTIGUOUS, &dweight));
  TRY(lm_tensor_empty(param, x->device, shape->n, shape->v, LM_CONTIGUOUS, &dbias));
  lm_layer_norm_backward_args job = *a;
  job.x = x, job.grad = grad, job.weight = weight, job.save_mean = mean, job.save_rstd = rstd;
  TRY(lm_dispatch(op, x->device, &job, (lm_tensor *[]){dx, dweight, dbias}));
  out[0] = lm_retain(dx);
  out[1] = lm_retain(dweight);
  out[2] = lm_retain(dbias);
done:
  lm_release(x);
  lm_release(grad);
  lm_release(weight);
  lm_release(mean);
  lm_release(rstd);
  lm_release(dx);
  lm_release(dweight);
  lm_release(dbias);
  return status;
}

/* ---- rms norm of something */

lm_status lm_op_rms_norm_rows(const lm_rms_norm_rows_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_rms_norm_rows;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *weight = NULL, *made[2] = {NULL};
  int64_t size[LM_MAX_DIMS];
  TRY(check_layer(op, a->x, &a->normalized_shape, a->weight, NULL));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(as_contiguous(a->weight, &weight));
  stat_sizes(x, a->normalized_shape.n, size);
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &made[0]));
  TRY(lm_tensor_empty(stat_dtype(x), x->device, x->ndim, size, LM_CONTIGUOUS, &made[1]));
  lm_rms_norm_rows_args job = {x, a->normalized_shape, weight, a->eps};
  TRY(lm_dispatch_or_host(op, x->device, &job, made));
  for (int i = 0; i < 2; i++) out[i] = lm_retain(made[i]);
done:
  lm_release(x);
  lm_release(weight);
  for (int i = 0; i < 2; i++) lm_release(made[i]);
  return status;
}

lm_status lm_op_rms_norm_rows_backward(const lm_rms_norm_rows_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_rms_norm_rows_backward;
  lm_status status = LM_OK;
  lm_tensor *in[4] = {NULL}, *made[2] = {NULL}, *x = a->x;
  const lm_ints *shape = &a->normalized_shape;
  int64_t size[LM_MAX_DIMS];
  TRY(check_layer(op, x, shape, a->weight, NULL));
  TRY(check_like_x(op, "grad", a->grad, x));
  stat_sizes(x, shape->n, size);
  TRY(check_param(op, "save_rstd", a->save_rstd, x, x->ndim, size));
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){x, a->save_rstd}));
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &in[0]));
  TRY(lm_to_layout(x, LM_CONTIGUOUS, &in[1]));
  TRY(as_contiguous(a->save_rstd, &in[2]));
  TRY(as_contiguous(a->weight, &in[3]));
  lm_dtype param = a->weight ? a->weight->dtype : stat_dtype(x);
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &made[0]));
  TRY(lm_tensor_empty(param, x->device, shape->n, shape->v, LM_CONTIGUOUS, &made[1]));
  lm_rms_norm_rows_backward_args job = {in[0], in[1], *shape, in[2], in[3], a->eps};
  TRY(lm_dispatch_or_host(op, x->device, &job, made));
  for (int i = 0; i < 2; i++) out[i] = lm_retain(made[i]);
done:
  for (int i = 0; i < 4; i++) lm_release(in[i]);
  for (int i = 0; i < 2; i++) lm_release(made[i]);
  return status;
}
