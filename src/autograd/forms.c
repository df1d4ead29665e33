#include "autograd/forms.h"

#include <math.h>

#include "autograd/expr.h"

static lm_status call(lm_op_id op, const void *args, bool in_place, lm_tensor **out) {
  return in_place ? lm_call_inplace(op, args, out) : lm_call(op, args, out);
}

static lm_status form_div(const lm_div_args *a, bool in_place, lm_tensor **out) {
  if (a->rounding_mode == LM_FLOOR) {
    return call(LM_OP_floor_divide, &(lm_floor_divide_args){a->x, a->other}, in_place, out);
  }
  return call(LM_OP_trunc_divide, &(lm_trunc_divide_args){a->x, a->other}, in_place, out);
}

/* Of floating x: its gradient at ties is another than that of bounds that are tensors. */
static bool clamps_to_numbers(const lm_clamp_args *a) {
  return lm_dtype_is_float((lm_dtype)a->x->dtype) && (!a->min || a->min->number) && (!a->max || a->max->number);
}

static lm_status form_clamp(const lm_clamp_args *a, bool in_place, lm_tensor **out) {
  lm_status status = LM_OK;
  if (!a->min && !a->max) return lm_fail(LM_E_ARG, "clamp: min and max are both missing; give one of them, or both");
  if (clamps_to_numbers(a)) {
    lm_clamp_range_args args = {.x = a->x, .min = -INFINITY, .max = INFINITY};
    if (a->min) TRY(lm_tensor_item_f64(a->min, &args.min));
    if (a->max) TRY(lm_tensor_item_f64(a->max, &args.max));
    TRY(call(LM_OP_clamp_range, &args, in_place, out));
  } else if (a->min) {
    TRY(call(LM_OP_maximum, &(lm_maximum_args){a->x, a->min}, in_place, out));
  } else {
    TRY(call(LM_OP_minimum, &(lm_minimum_args){a->x, a->max}, in_place, out));
  }
done:
  return status;
}

/* round(x * 10^decimals) / 10^decimals, or round(x / 10^-decimals) * 10^-decimals: these powers are exact up to 10^22.
 */
static lm_status form_round(const lm_round_args *a, bool in_place, lm_tensor **out) {
  lm_dtype dtype = (lm_dtype)a->x->dtype, wide = dtype == LM_F64 ? LM_F64 : LM_F32;
  int most = wide == LM_F64 ? 308 : 38;
  if (!lm_dtype_is_float(dtype)) {
    return lm_fail(LM_E_DTYPE, "round: decimals are for floating x, got %s; use :float() first", lm_dtype_name(dtype));
  }
  if (a->decimals < -most || a->decimals > most) {
    return lm_fail(LM_E_ARG, "round: decimals is %lld; 10^%lld is beyond %s, which has -%d to %d",
                   (long long)a->decimals, (long long)a->decimals, lm_dtype_name(wide), most, most);
  }
  lm_round_scaled_args args = {.x = a->x, .factor = 1, .divisor = 1};
  *(a->decimals > 0 ? &args.factor : &args.divisor) = (pow)(10, fabs((double)a->decimals));
  return call(LM_OP_round_scaled, &args, in_place, out);
}

static lm_status no_correction(const char *name, int64_t *correction, bool *unbiased) {
  if (*correction != 0 && *correction != 1) {
    return lm_fail(LM_E_ARG, "%s: unbiased = false is correction = 0, and correction is %lld; give one of the two",
                   name, (long long)*correction);
  }
  *correction = 0;
  *unbiased = true;
  return LM_OK;
}

static lm_status form_var(lm_var_args a, lm_tensor **out) {
  lm_status status = no_correction("var", &a.correction, &a.unbiased);
  return status == LM_OK ? lm_call(LM_OP_var, &a, out) : status;
}

static lm_status form_std(lm_std_args a, lm_tensor **out) {
  lm_status status = no_correction("std", &a.correction, &a.unbiased);
  return status == LM_OK ? lm_call(LM_OP_std, &a, out) : status;
}

/* A vector for weight is a matrix of one row, whose dim goes from the result; a bias of one number is added at last. */
static lm_status form_linear(const lm_linear_args *a, lm_tensor **out) {
  lm_tensor *x = a->x, *w = a->weight, *bias = a->bias;
  lm_expr e, *e_ = &e;
  if (w->ndim == 1) {
    if (x->ndim == 0 || x->size[x->ndim - 1] != w->size[0]) {
      return lm_fail(LM_E_SHAPE, "linear: x is %s, weight %s: the last sizes differ", lm_shape_of(x), lm_shape_of(w));
    }
    if (bias && bias->ndim > 0) {
      return lm_fail(LM_E_SHAPE, "linear: bias is %s; for a weight of one dim it has to be a number or 0-d",
                     lm_shape_of(bias));
    }
  }
  lm_expr_begin(e_);
  lm_tensor *y = linear(x, w->ndim == 1 ? unsqueeze(w, 0) : w);
  if (w->ndim == 1) y = squeeze(y, -1);
  return lm_expr_finish(e_, bias ? add(y, bias) : y, out);
}

/* "same": dilation * (kernel - 1) more places, half of them on either side; an odd one comes last. */
static lm_status form_conv2d(lm_conv2d_args a, lm_tensor **out) {
  lm_expr e, *e_ = &e;
  lm_ints after = {.n = 4}; /* pad's: columns before and after, rows before and after */
  if (a.stride[0] != 1 || a.stride[1] != 1) {
    return lm_fail(LM_E_ARG, "conv2d: padding = \"same\" is for a stride of 1, and stride is {%lld, %lld}",
                   (long long)a.stride[0], (long long)a.stride[1]);
  }
  for (int i = 0; i < 2; i++) {
    a.padding[i] = 0;
    bool sound = a.weight->ndim == 4 && a.dilation[i] > 0 && a.dilation[i] <= INT32_MAX && a.weight->size[2 + i] > 0 &&
                 a.weight->size[2 + i] <= INT32_MAX;
    if (!sound) continue; /* conv2d words the error */
    int64_t more = a.dilation[i] * (a.weight->size[2 + i] - 1);
    a.padding[i] = more / 2;
    after.v[3 - 2 * i] = more % 2;
  }
  lm_expr_begin(e_);
  lm_tensor *x = after.v[1] || after.v[3] ? pad(a.x, after) : a.x;
  return lm_expr_finish(e_, conv2d(x, a.weight, a.bias, a.stride, a.padding, a.dilation, a.groups), out);
}

static bool takes(lm_op_id op, const void *args) {
  switch (op) {
    case LM_OP_div: return ((const lm_div_args *)args)->rounding_mode != LM_EXACT;
    case LM_OP_clamp: {
      const lm_clamp_args *a = args;
      return !a->min || !a->max || clamps_to_numbers(a);
    }
    case LM_OP_round: return ((const lm_round_args *)args)->decimals != 0;
    case LM_OP_var: return !((const lm_var_args *)args)->unbiased;
    case LM_OP_std: return !((const lm_std_args *)args)->unbiased;
    case LM_OP_linear: {
      const lm_linear_args *a = args;
      return a->weight->ndim == 1 || (a->bias && a->bias->ndim == 0);
    }
    case LM_OP_conv2d: return ((const lm_conv2d_args *)args)->padding[0] == LM_PAD_SAME;
    default: return false;
  }
}

lm_status lm_run_form(lm_op_id op, const void *args, bool in_place, bool *taken, lm_tensor **out) {
  lm_status status = LM_OK;
  *taken = takes(op, args);
  if (!*taken) return LM_OK;
  switch (op) {
    case LM_OP_div: status = form_div(args, in_place, out); break;
    case LM_OP_clamp: status = form_clamp(args, in_place, out); break;
    case LM_OP_round: status = form_round(args, in_place, out); break;
    case LM_OP_var: status = form_var(*(const lm_var_args *)args, out); break;
    case LM_OP_std: status = form_std(*(const lm_std_args *)args, out); break;
    case LM_OP_linear: status = form_linear(args, out); break;
    default: status = form_conv2d(*(const lm_conv2d_args *)args, out); break;
  }
  return status == LM_OK || status == LM_E_OOM ? status : lm_fail_in(status, lm_ops[op].name);
}
