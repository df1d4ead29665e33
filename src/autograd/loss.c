/* Losses made of ops. Reductions and corner cases as PyTorch's; classes count from 1. */
#include <string.h>

#include "autograd/composite.h"
#include "autograd/expr.h"
#include "base/log.h"

static lm_tensor *reduced(lm_expr *e_, lm_tensor *t, int reduction) {
  return reduction == LM_NONE ? t : reduction == LM_MEAN ? mean(t) : sum(t);
}

lm_status lm_composite_mse_loss(const lm_mse_loss_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  if (!lm_same_shape(a->x, a->target)) {
    lm_warn(
        "mse_loss: x is %s, target %s; they are broadcast to one size, which is probably not what is meant: give "
        "them the same size",
        lm_shape_of(a->x), lm_shape_of(a->target));
  }
  lm_expr_begin(e_);
  return lm_expr_finish(e_, reduced(e_, square(sub(a->x, a->target)), a->reduction), out);
}

/* (1 - t) x - (1 + (pos_weight - 1) t) log_sigmoid(x), times weight. */
lm_status lm_composite_bce_with_logits(const lm_bce_with_logits_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  if (!lm_same_shape(a->x, a->target)) {
    return lm_fail(LM_E_SHAPE, "bce_with_logits: x is %s, target %s; they have to be the same size", lm_shape_of(a->x),
                   lm_shape_of(a->target));
  }
  lm_expr_begin(e_);
  lm_tensor *positive = log_sigmoid(a->x);
  if (a->pos_weight) positive = mul(positive, add(mul(sub(a->pos_weight, 1), a->target), 1));
  lm_tensor *loss = sub(mul(sub(1, a->target), a->x), positive);
  if (a->weight) loss = mul(loss, a->weight);
  return lm_expr_finish(e_, reduced(e_, loss, a->reduction), out);
}

/* Logits given by mistake would be NaN. On a device that has to be waited for they are. */
static lm_status check_probabilities(lm_tensor *x) {
  lm_status status = LM_OK;
  lm_tensor *least = NULL, *most = NULL;
  double low, high;
  if (LM_DEVICE_KIND(x->device) != LM_CPU || x->numel == 0 || !lm_dtype_is_float((lm_dtype)x->dtype)) return LM_OK;
  TRY(lm_op_run(LM_OP_amin, &(lm_amin_args){.x = x, .dim = {.n = -1}}, &least));
  TRY(lm_op_run(LM_OP_amax, &(lm_amax_args){.x = x, .dim = {.n = -1}}, &most));
  TRY(lm_tensor_item_f64(least, &low));
  TRY(lm_tensor_item_f64(most, &high));
  if (low < 0 || high > 1) {
    status = lm_fail(LM_E_ARG,
                     "binary_cross_entropy: x has values from %g to %g, and probabilities are from 0 to 1; "
                     "bce_with_logits takes logits",
                     low, high);
  }
done:
  lm_release(least);
  lm_release(most);
  return status;
}

lm_status lm_composite_binary_cross_entropy(const lm_binary_cross_entropy_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  if (!lm_same_shape(a->x, a->target)) {
    return lm_fail(LM_E_SHAPE, "binary_cross_entropy: x is %s, target %s; they have to be the same size",
                   lm_shape_of(a->x), lm_shape_of(a->target));
  }
  lm_status status = check_probabilities(a->x);
  if (status != LM_OK) return status;
  lm_expr_begin(e_);
  lm_tensor *loss = bce(a->x, a->target);
  if (a->weight) loss = mul(loss, a->weight);
  return lm_expr_finish(e_, reduced(e_, loss, a->reduction), out);
}

/* ---- cross entropy; logp: log-probabilities [N, C, ...] */

static lm_tensor *weighted(lm_expr *e_, lm_tensor *logp, lm_tensor *weight) {
  if (!weight || !logp) return logp;
  lm_ints size = {.n = logp->ndim};
  for (int d = 0; d < size.n; d++) size.v[d] = d == 1 ? weight->size[0] : 1;
  return mul(logp, reshape(weight, size));
}

/* target: probabilities [N, C, ...]. The mean is over everything but the classes. */
static lm_tensor *against_probabilities(lm_expr *e_, const lm_cross_entropy_args *a, lm_tensor *logp,
                                        lm_tensor *target) {
  double classes = (double)logp->size[1], smooth = a->label_smoothing;
  if (smooth > 0) target = add(mul(target, 1 - smooth), smooth / classes);
  lm_tensor *loss = neg(mul(weighted(e_, logp, a->weight), target));
  if (a->reduction == LM_NONE) return sum(loss, 1);
  if (a->reduction == LM_SUM) return sum(loss);
  return div(sum(loss), (double)logp->numel / classes);
}

/* The part of label smoothing that spreads over all classes. */
static lm_tensor *smoothed(lm_expr *e_, const lm_cross_entropy_args *a, lm_tensor *logp, lm_tensor *target) {
  lm_tensor *ignored = eq(target, a->ignore_index);
  lm_tensor *loss = masked_fill(neg(sum(weighted(e_, logp, a->weight), 1)), ignored, 0);
  if (a->reduction != LM_MEAN) return reduced(e_, loss, a->reduction);
  if (!a->weight) return div(sum(loss), sum(logical_not(ignored)));
  lm_tensor *each = index_select(a->weight, 0, flatten(masked_fill(target, ignored, 1)));
  return div(sum(loss), sum(masked_fill(each, flatten(ignored), 0)));
}

static lm_tensor *against_classes(lm_expr *e_, const lm_cross_entropy_args *a, lm_tensor *logp, lm_tensor *target) {
  double smooth = a->label_smoothing;
  lm_tensor *loss = nll_loss(logp, target, a->weight, a->ignore_index, a->reduction);
  if (smooth == 0 || !loss) return loss;
  return add(mul(loss, 1 - smooth), mul(smoothed(e_, a, logp, target), smooth / (double)logp->size[1]));
}

static lm_status check_cross_entropy(const lm_cross_entropy_args *a) {
  const lm_tensor *x = a->x, *target = a->target;
  if (x->ndim == 0) return lm_fail(LM_E_SHAPE, "cross_entropy: x needs a dim of classes: [C], [N, C] or [N, C, ...]");
  if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1)) {
    return lm_fail(LM_E_ARG, "cross_entropy: label_smoothing is %g; it has to be from 0 to 1", a->label_smoothing);
  }
  int64_t classes = x->size[x->ndim > 1];
  if (a->weight && (a->weight->ndim != 1 || a->weight->size[0] != classes)) {
    return lm_fail(LM_E_SHAPE, "cross_entropy: weight is %s; it has to hold one number for each of %lld classes",
                   lm_shape_of(a->weight), (long long)classes);
  }
  if (lm_dtype_is_float((lm_dtype)target->dtype) && !lm_same_shape(x, target)) {
    return lm_fail(LM_E_SHAPE,
                   "cross_entropy: target is %s %s; probabilities have to be x's size %s, and classes integers",
                   lm_dtype_name((lm_dtype)target->dtype), lm_shape_of(target), lm_shape_of(x));
  }
  if (!lm_dtype_is_float((lm_dtype)target->dtype) && target->ndim != x->ndim - 1) {
    return lm_fail(LM_E_SHAPE, "cross_entropy: target is %s; for x of %s it has one dim less, without the classes",
                   lm_shape_of(target), lm_shape_of(x));
  }
  return LM_OK;
}

lm_status lm_composite_cross_entropy(const lm_cross_entropy_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_expr e, *e_ = &e;
  lm_tensor *x = a->x, *target = a->target, *loss;
  TRY(check_cross_entropy(a));
  lm_expr_begin(e_);
  bool single = x->ndim == 1, probabilities = lm_dtype_is_float((lm_dtype)target->dtype);
  if (single) { /* no batch: one of one */
    x = unsqueeze(x, 0);
    target = unsqueeze(target, 0);
  }
  lm_tensor *logp = log_softmax(x, 1);
  if (logp) {
    loss = probabilities ? against_probabilities(e_, a, logp, target) : against_classes(e_, a, logp, target);
  } else {
    loss = NULL;
  }
  if (single && a->reduction == LM_NONE) loss = reshape(loss, ((lm_ints){.n = 0}));
  return lm_expr_finish(e_, loss, out);
done:
  return status;
}
