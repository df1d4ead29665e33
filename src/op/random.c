/* Random numbers: writing them into a tensor, and new tensors of them. The slots take their draws
 * from the device's generator (tensor/generator.h). */
#include "op/check.h"

static lm_status draw(lm_op_id op, lm_tensor *x, const void *args) {
  return x->numel ? lm_dispatch(op, x->device, args, &x) : LM_OK;
}

/* ---- in place */

lm_status lm_op_normal_(const lm_normal__args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  TRY(lm_check_float(LM_OP_normal_, "x", a->x));
  if (!(a->std >= 0)) return lm_fail(LM_E_ARG, "normal_: std is %g; it has to be 0 or more", a->std);
  TRY(draw(LM_OP_normal_, a->x, a));
  *out = lm_retain(a->x);
done:
  return status;
}

lm_status lm_op_uniform_(const lm_uniform__args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  TRY(lm_check_float(LM_OP_uniform_, "x", a->x));
  if (!(a->from <= a->to) || !isfinite(a->to - a->from)) {
    return lm_fail(LM_E_ARG, "uniform_: from %g to %g; from has to be at most to, and both finite", a->from, a->to);
  }
  TRY(draw(LM_OP_uniform_, a->x, a));
  *out = lm_retain(a->x);
done:
  return status;
}

/* The integers a dtype holds exactly: low <= i <= high. */
static void exact_range(lm_dtype dtype, int64_t *low, int64_t *high) {
  switch (dtype) {
    case LM_BOOL: *low = 0, *high = 1; break;
    case LM_U8: *low = 0, *high = UINT8_MAX; break;
    case LM_I32: *low = INT32_MIN, *high = INT32_MAX; break;
    case LM_F16: *low = -(1 << 11), *high = 1 << 11; break;
    case LM_BF16: *low = -(1 << 8), *high = 1 << 8; break;
    case LM_F32: *low = -(1 << 24), *high = 1 << 24; break;
    case LM_F64: *low = -(INT64_C(1) << 53), *high = INT64_C(1) << 53; break;
    default: *low = INT64_MIN, *high = INT64_MAX; break;
  }
}

/* op's [from, to) has to be non-empty and exact in x's dtype. */
static lm_status check_range(lm_op_id op, const char *from_name, const char *to_name, int64_t from, int64_t to,
                             lm_dtype dtype) {
  int64_t low, high;
  if (from >= to) {
    return lm_fail(LM_E_ARG, "%s: %s is %lld and %s is %lld; the range [%s, %s) is empty", lm_ops[op].name, from_name,
                   (long long)from, to_name, (long long)to, from_name, to_name);
  }
  exact_range(dtype, &low, &high);
  if (from < low || to - 1 > high) {
    return lm_fail(LM_E_ARG, "%s: %s holds integers from %lld to %lld, not all of [%lld, %lld)", lm_ops[op].name,
                   lm_dtype_name(dtype), (long long)low, (long long)high, (long long)from, (long long)to);
  }
  return LM_OK;
}

lm_status lm_op_random_(const lm_random__args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  TRY(check_range(LM_OP_random_, "from", "to", a->from, a->to, (lm_dtype)a->x->dtype));
  TRY(draw(LM_OP_random_, a->x, a));
  *out = lm_retain(a->x);
done:
  return status;
}

lm_status lm_op_bernoulli_(const lm_bernoulli__args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  if (!(a->p >= 0 && a->p <= 1)) return lm_fail(LM_E_ARG, "bernoulli_: p is %g; a probability is in [0, 1]", a->p);
  TRY(draw(LM_OP_bernoulli_, a->x, a));
  *out = lm_retain(a->x);
done:
  return status;
}

/* ---- new */

static lm_status new_sized(lm_op_id op, const lm_ints *size, lm_dtype dtype, lm_device device, lm_tensor **out) {
  lm_status status = lm_tensor_empty(dtype, device == LM_NO_DEVICE ? lm_default_device() : device,
                                     size->n < 0 ? 0 : size->n, size->v, LM_CONTIGUOUS, out);
  return status == LM_E_ARG ? lm_fail_in(status, lm_ops[op].name) : status;
}

static lm_status new_like(const lm_tensor *x, lm_dtype dtype, lm_device device, lm_tensor **out) {
  return lm_tensor_empty_like(x, dtype == LM_NO_DTYPE ? (lm_dtype)x->dtype : dtype,
                              device == LM_NO_DEVICE ? x->device : device, out);
}

static lm_status check_drawn(lm_op_id op, lm_dtype dtype) {
  if (lm_dtype_is_float(dtype)) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: draws floating numbers, not %s; use lm.randint", lm_ops[op].name,
                 lm_dtype_name(dtype));
}

/* Takes x over: fills it uniformly in [0, 1) or normally, and hands it on. */
static lm_status drawn(lm_op_id op, bool normal, lm_tensor *x, lm_tensor **out) {
  lm_status status = LM_OK;
  TRY(check_drawn(op, (lm_dtype)x->dtype));
  if (normal) {
    TRY(draw(LM_OP_normal_, x, &(lm_normal__args){.x = x, .mean = 0, .std = 1}));
  } else {
    TRY(draw(LM_OP_uniform_, x, &(lm_uniform__args){.x = x, .from = 0, .to = 1}));
  }
  *out = x;
  x = NULL;
done:
  lm_release(x);
  return status;
}

lm_status lm_op_rand(const lm_rand_args *a, lm_tensor **out) {
  lm_tensor *x = NULL;
  lm_status status =
      new_sized(LM_OP_rand, &a->size, a->dtype == LM_NO_DTYPE ? lm_default_dtype() : a->dtype, a->device, &x);
  return status == LM_OK ? drawn(LM_OP_rand, false, x, out) : status;
}

lm_status lm_op_randn(const lm_randn_args *a, lm_tensor **out) {
  lm_tensor *x = NULL;
  lm_status status =
      new_sized(LM_OP_randn, &a->size, a->dtype == LM_NO_DTYPE ? lm_default_dtype() : a->dtype, a->device, &x);
  return status == LM_OK ? drawn(LM_OP_randn, true, x, out) : status;
}

lm_status lm_op_rand_like(const lm_rand_like_args *a, lm_tensor **out) {
  lm_tensor *x = NULL;
  lm_status status = new_like(a->x, a->dtype, a->device, &x);
  return status == LM_OK ? drawn(LM_OP_rand_like, false, x, out) : status;
}

lm_status lm_op_randn_like(const lm_randn_like_args *a, lm_tensor **out) {
  lm_tensor *x = NULL;
  lm_status status = new_like(a->x, a->dtype, a->device, &x);
  return status == LM_OK ? drawn(LM_OP_randn_like, true, x, out) : status;
}

lm_status lm_op_randint(const lm_randint_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL;
  lm_dtype dtype = a->dtype == LM_NO_DTYPE ? LM_I64 : a->dtype;
  TRY(check_range(LM_OP_randint, "low", "high", a->low, a->high, dtype));
  TRY(new_sized(LM_OP_randint, &a->size, dtype, a->device, &x));
  TRY(draw(LM_OP_random_, x, &(lm_random__args){.x = x, .from = a->low, .to = a->high}));
  *out = x;
  x = NULL;
done:
  lm_release(x);
  return status;
}

lm_status lm_op_randperm(const lm_randperm_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL;
  lm_randperm_args args = *a;
  if (args.dtype == LM_NO_DTYPE) args.dtype = LM_I64;
  if (args.device == LM_NO_DEVICE) args.device = lm_default_device();
  if (a->n < 0) return lm_fail(LM_E_ARG, "randperm: n is %lld", (long long)a->n);
  if (a->n > 0) TRY(check_range(LM_OP_randperm, "1", "n + 1", 1, a->n + 1, args.dtype));
  TRY(lm_tensor_empty(args.dtype, args.device, 1, &a->n, LM_CONTIGUOUS, &x));
  TRY(draw(LM_OP_randperm, x, &args));
  *out = x;
  x = NULL;
done:
  lm_release(x);
  return status;
}
