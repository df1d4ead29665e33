/* The backward ops of norms in terms of simple ones, for double backward: the statistics are made anew
 * from x, since their gradients matter too.
 *
 * With xhat = (x - mean) invstd and w the weight, for n elements that share statistics:
 *   dx = invstd (w g - mean(w g) - xhat mean(w g xhat)),  dw = sum(g xhat),  db = sum(g) */
#include <string.h>

#include "autograd/composite.h"
#include "autograd/expr.h"

/* Three results of e's, handed over; e ends. */
static lm_status finish(lm_expr *e, lm_tensor *const *result, lm_tensor **out) {
  lm_status status = e->status;
  for (int i = 0; i < 3 && status == LM_OK; i++) {
    if (!result[i]) status = lm_fail(LM_E_STATE, "a formula gave no value");
  }
  for (int i = 0; i < 3 && status == LM_OK; i++) out[i] = lm_retain(result[i]);
  lm_expr_end(e);
  return status;
}

static lm_tensor *normalized_gradient(lm_expr *e_, lm_tensor *wg, lm_tensor *xhat, lm_tensor *invstd, lm_ints dims) {
  lm_tensor *centred = sub(wg, mean(wg, dims, 1));
  return mul(invstd, sub(centred, mul(xhat, mean(mul(wg, xhat), dims, 1))));
}

/* x [N, C, ...]: statistics a channel. */
lm_status lm_composite_batch_norm_backward(const lm_batch_norm_backward_args *a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  lm_tensor *x = a->x, *grad = a->grad, *centred, *invstd, *result[3];
  lm_ints dims = {.n = 0}, channel = {.n = x->ndim};
  for (int d = 0; d < x->ndim; d++) {
    channel.v[d] = d == 1 ? x->size[1] : 1;
    if (d != 1) dims.v[dims.n++] = d;
  }
  lm_expr_begin(e_);
  if (a->training) {
    centred = sub(x, mean(x, dims, 1));
    invstd = rsqrt(add(mean(square(centred), dims, 1), a->eps));
  } else {
    centred = sub(x, reshape(a->running_mean, channel));
    invstd = rsqrt(add(reshape(a->running_var, channel), a->eps));
  }
  lm_tensor *xhat = mul(centred, invstd);
  lm_tensor *wg = a->weight ? mul(grad, reshape(a->weight, channel)) : grad;
  result[0] = a->training ? normalized_gradient(e_, wg, xhat, invstd, dims) : mul(wg, invstd);
  result[1] = sum(mul(grad, xhat), dims);
  result[2] = sum(grad, dims);
  return finish(e_, result, out);
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
  return finish(e_, result, out);
}
