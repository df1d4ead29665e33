/* The backward ops of norms in terms of simple ones, for double backward: the statistics are made anew
 * from x, since their gradients matter too.
 *
 * With xhat = (x - mean) invstd and w the weight, for n elements that share statistics:
 *   dx = invstd (w g - mean(w g) - xhat mean(w g xhat)),  dw = sum(g xhat),  db = sum(g) */
#include <string.h>

#include "autograd/composite.h"
#include "autograd/expr.h"

/* n results of e's, handed over; e ends. */
static lm_status finish(lm_expr *e, int n, lm_tensor *const *result, lm_tensor **out) {
  lm_status status = e->status;
  for (int i = 0; i < n && status == LM_OK; i++) {
    if (!result[i]) status = lm_fail(LM_E_STATE, "a formula gave no value");
  }
  for (int i = 0; i < n && status == LM_OK; i++) out[i] = lm_retain(result[i]);
  lm_expr_end(e);
  return status;
}

static lm_tensor *normalized_gradient(lm_expr *e_, lm_tensor *wg, lm_tensor *xhat, lm_tensor *invstd, lm_ints dims) {
  lm_tensor *centred = sub(wg, mean(wg, dims, 1));
  return mul(invstd, sub(centred, mul(xhat, mean(mul(wg, xhat), dims, 1))));
}

/* What there is one of for each channel of an x [N, C, ...]: sizes to broadcast it, and the other dims. */
typedef struct channelwise {
  lm_ints size, dims;
} channelwise;

static channelwise channels_of(const lm_tensor *x) {
  channelwise c = {.size.n = x->ndim};
  for (int d = 0; d < x->ndim; d++) {
    c.size.v[d] = d == 1 ? x->size[1] : 1;
    if (d != 1) c.dims.v[c.dims.n++] = d;
  }
  return c;
}

/* Gradients of batch norm for x, weight and bias; centred and invstd: x's distances from the mean, by x's own
 * statistics if `own`. */
static void batch_gradients(lm_expr *e_, const channelwise *c, lm_tensor *grad, lm_tensor *centred, lm_tensor *invstd,
                            lm_tensor *weight, bool own, lm_tensor **result) {
  lm_tensor *xhat = mul(centred, invstd);
  lm_tensor *wg = weight ? mul(grad, reshape(weight, c->size)) : grad;
  result[0] = own ? normalized_gradient(e_, wg, xhat, invstd, c->dims) : mul(wg, invstd);
  result[1] = sum(mul(grad, xhat), c->dims);
  result[2] = sum(grad, c->dims);
}

static lm_tensor *own_invstd(lm_expr *e_, const channelwise *c, lm_tensor *centred, double eps) {
  return rsqrt(add(mean(square(centred), c->dims, 1), eps));
}

lm_status lm_composite_batch_norm_backward(const lm_batch_norm_backward_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  lm_tensor *centred, *invstd, *result[3];
  const channelwise c = channels_of(a->x);
  lm_expr_begin(e_);
  if (a->training) {
    centred = sub(a->x, mean(a->x, c.dims, 1));
    invstd = own_invstd(e_, &c, centred, a->eps);
  } else {
    centred = sub(a->x, reshape(a->running_mean, c.size));
    invstd = rsqrt(add(reshape(a->running_var, c.size), a->eps));
  }
  batch_gradients(e_, &c, a->grad, centred, invstd, a->weight, a->training, result);
  return finish(e_, 3, result, out);
}

lm_status lm_composite_batch_norm_relu_backward(const lm_batch_norm_relu_backward_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  lm_tensor *result[4], *y = a->y;
  const channelwise c = channels_of(a->x);
  lm_expr_begin(e_);
  lm_tensor *centred = sub(a->x, a->training ? mean(a->x, c.dims, 1) : reshape(a->save_mean, c.size));
  lm_tensor *invstd = a->training ? own_invstd(e_, &c, centred, a->eps) : reshape(a->save_invstd, c.size);
  if (!y) {
    y = mul(centred, invstd);
    if (a->weight) y = mul(y, reshape(a->weight, c.size));
    if (a->bias) y = add(y, reshape(a->bias, c.size));
  }
  result[3] = masked_fill(a->grad, le(y, 0), 0);
  batch_gradients(e_, &c, result[3], centred, invstd, a->weight, a->training, result);
  return finish(e_, a->y ? 4 : 3, result, out);
}

/* Statistics over the last normalized_shape.n dims. */
lm_status lm_composite_layer_norm_backward(const lm_layer_norm_backward_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  lm_tensor *x = a->x, *grad = a->grad, *result[3];
  int leading = x->ndim - a->normalized_shape.n;
  lm_ints dims = {.n = 0}, outer = {.n = 0};
  for (int d = 0; d < x->ndim; d++) {
    if (d < leading) {
      outer.v[outer.n++] = d;
    } else {
      dims.v[dims.n++] = d;
    }
  }
  lm_expr_begin(e_);
  lm_tensor *centred = sub(x, mean(x, dims, 1));
  lm_tensor *invstd = rsqrt(add(mean(square(centred), dims, 1), a->eps));
  lm_tensor *xhat = mul(centred, invstd);
  lm_tensor *wg = a->weight ? mul(grad, a->weight) : grad;
  result[0] = normalized_gradient(e_, wg, xhat, invstd, dims);
  result[1] = mul(grad, xhat);
  result[2] = grad;
  if (outer.n > 0) {
    result[1] = sum(result[1], outer);
    result[2] = sum(grad, outer);
  }
  return finish(e_, 3, result, out);
}
