/* Reductions: dims, result dtypes (PyTorch's rules), empty inputs.
 *
 * A slot gets its output in keepdim form; the reduced dims leave the fresh header afterwards. */
#include "base/message.h"
#include "op/check.h"

/* Take dims out of a tensor that nobody else has seen yet. */
static void drop_dims(lm_tensor *t, const lm_ints *dims) {
  bool dropped[LM_MAX_DIMS] = {false};
  for (int i = 0; i < dims->n; i++) dropped[dims->v[i]] = true;
  int ndim = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (dropped[d]) continue;
    t->size[ndim] = t->size[d];
    t->stride[ndim++] = t->stride[d];
  }
  t->ndim = (uint8_t)ndim;
}

static lm_status new_reduced(const lm_tensor *x, const lm_ints *dims, lm_dtype dtype, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = x->size[d];
  for (int i = 0; i < dims->n; i++) size[dims->v[i]] = 1;
  return lm_tensor_empty(dtype, x->device, x->ndim, size, LM_CONTIGUOUS, out);
}

static lm_status fill(lm_tensor *x, double number) {
  lm_status status = LM_OK;
  lm_tensor *value = NULL, *result = NULL;
  TRY(lm_tensor_number(number, &value));
  TRY(lm_op_fill_(&(lm_fill__args){.x = x, .value = value}, &result));
done:
  lm_release(value);
  lm_release(result);
  return status;
}

/* args: the op's struct with complete dims. empty: what the reduction of no elements returns. */
static lm_status reduce(lm_op_id op, const lm_tensor *x, const lm_ints *dims, bool keepdim, lm_dtype dtype,
                        double empty, const void *args, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL;
  TRY(new_reduced(x, dims, dtype, &result));
  if (x->numel > 0) {
    TRY(lm_dispatch(op, x->device, args, &result));
  } else if (result->numel > 0) {
    TRY(fill(result, empty));
  }
  if (!keepdim) drop_dims(result, dims);
  *out = result;
  result = NULL;
done:
  lm_release(result);
  return status;
}

/* x itself, or converted first where the caller asked for another dtype to compute in. */
static lm_status in_dtype(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  if (dtype == LM_NO_DTYPE || dtype == x->dtype) {
    *out = lm_retain(x);
    return LM_OK;
  }
  return lm_op_to_copy(&(lm_to_copy_args){.x = x, .dtype = dtype, .device = x->device, .memory_format = LM_PRESERVE},
                       out);
}

/* sum and the like, in the dtype asked for or x's own; integers give int64. */
#define IN_X_OR_INT64(name, empty)                                                                               \
  lm_status lm_op_##name(const lm_##name##_args *a, lm_tensor **out) {                                           \
    lm_status status = LM_OK;                                                                                    \
    lm_##name##_args args = *a;                                                                                  \
    lm_dtype dtype = a->dtype;                                                                                   \
    if (dtype == LM_NO_DTYPE) dtype = lm_dtype_is_float(a->x->dtype) ? a->x->dtype : LM_I64;                     \
    TRY(in_dtype(a->x, a->dtype, &args.x));                                                                      \
    status = lm_dims(LM_OP_##name, &a->dim, args.x->ndim, &args.dim);                                            \
    if (status == LM_OK) status = reduce(LM_OP_##name, args.x, &args.dim, a->keepdim, dtype, empty, &args, out); \
    lm_release(args.x);                                                                                          \
  done:                                                                                                          \
    return status;                                                                                               \
  }
IN_X_OR_INT64(sum, 0)
IN_X_OR_INT64(nansum, 0)
IN_X_OR_INT64(prod, 1)
#undef IN_X_OR_INT64

lm_status lm_op_mean(const lm_mean_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_mean_args args = *a;
  lm_dtype dtype = a->dtype == LM_NO_DTYPE ? a->x->dtype : a->dtype;
  if (!lm_dtype_is_float(dtype)) {
    return lm_remedy(lm_fail_dtype("mean", "dtype", "floating point", lm_dtype_name(dtype)),
                     "use x:float():mean() or pass a floating dtype");
  }
  TRY(in_dtype(a->x, a->dtype, &args.x));
  status = lm_dims(LM_OP_mean, &a->dim, args.x->ndim, &args.dim);
  if (status == LM_OK) status = reduce(LM_OP_mean, args.x, &args.dim, a->keepdim, dtype, NAN, &args, out);
  lm_release(args.x);
done:
  return status;
}

lm_status lm_op_var(const lm_var_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_var_args args = *a;
  TRY(lm_check_float(LM_OP_var, "x", a->x));
  TRY(lm_dims(LM_OP_var, &a->dim, a->x->ndim, &args.dim));
  TRY(reduce(LM_OP_var, a->x, &args.dim, a->keepdim, a->x->dtype, NAN, &args, out));
done:
  return status;
}

/* Reductions without a neutral element refuse a dim of size 0. */
static lm_status check_not_empty(lm_op_id op, const lm_tensor *x, const lm_ints *dims) {
  for (int i = 0; i < dims->n; i++) {
    if (x->size[dims->v[i]] > 0) continue;
    return lm_fail_empty_dim(lm_ops[op].name, (int)dims->v[i] + 1, lm_shape_of(x));
  }
  return LM_OK;
}

/* p = 2 Euclidean, 1 sum of |x|, 0 count of nonzeros, math.huge largest |x|, -math.huge smallest. */
lm_status lm_op_norm(const lm_norm_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_norm_args args = *a;
  TRY(lm_check_float(LM_OP_norm, "x", a->x));
  if (isnan(a->p)) return lm_fail_number("norm", "p", "a number", a->p);
  TRY(lm_dims(LM_OP_norm, &a->dim, a->x->ndim, &args.dim));
  if (a->p < 0 || isinf(a->p)) TRY(check_not_empty(LM_OP_norm, a->x, &args.dim));
  TRY(reduce(LM_OP_norm, a->x, &args.dim, a->keepdim, a->x->dtype, 0, &args, out));
done:
  return status;
}

lm_status lm_op_logsumexp(const lm_logsumexp_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_logsumexp_args args = *a;
  lm_dtype dtype = lm_dtype_is_float(a->x->dtype) ? a->x->dtype : lm_default_dtype();
  TRY(in_dtype(a->x, dtype, &args.x));
  status = lm_dims(LM_OP_logsumexp, &a->dim, args.x->ndim, &args.dim);
  if (status == LM_OK) status = reduce(LM_OP_logsumexp, args.x, &args.dim, a->keepdim, dtype, -INFINITY, &args, out);
  lm_release(args.x);
done:
  return status;
}

lm_status lm_op_amax(const lm_amax_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_amax_args args = *a;
  TRY(lm_dims(LM_OP_amax, &a->dim, a->x->ndim, &args.dim));
  TRY(check_not_empty(LM_OP_amax, a->x, &args.dim));
  TRY(reduce(LM_OP_amax, a->x, &args.dim, a->keepdim, a->x->dtype, 0, &args, out));
done:
  return status;
}

lm_status lm_op_amin(const lm_amin_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_amin_args args = *a;
  TRY(lm_dims(LM_OP_amin, &a->dim, a->x->ndim, &args.dim));
  TRY(check_not_empty(LM_OP_amin, a->x, &args.dim));
  TRY(reduce(LM_OP_amin, a->x, &args.dim, a->keepdim, a->x->dtype, 0, &args, out));
done:
  return status;
}

lm_status lm_op_all(const lm_all_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_all_args args = *a;
  TRY(lm_dims(LM_OP_all, &a->dim, a->x->ndim, &args.dim));
  TRY(reduce(LM_OP_all, a->x, &args.dim, a->keepdim, LM_BOOL, 1, &args, out));
done:
  return status;
}

lm_status lm_op_any(const lm_any_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_any_args args = *a;
  TRY(lm_dims(LM_OP_any, &a->dim, a->x->ndim, &args.dim));
  TRY(reduce(LM_OP_any, a->x, &args.dim, a->keepdim, LM_BOOL, 0, &args, out));
done:
  return status;
}

lm_status lm_op_count_nonzero(const lm_count_nonzero_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_count_nonzero_args args = *a;
  TRY(lm_dims(LM_OP_count_nonzero, &a->dim, a->x->ndim, &args.dim));
  TRY(reduce(LM_OP_count_nonzero, a->x, &args.dim, false, LM_I64, 0, &args, out));
done:
  return status;
}

/* ---- where the extremes are: one dim, indices from 1 */

/* values, indices along a dim */
static lm_status extreme_dim(lm_op_id op, lm_tensor *x, int64_t asked, bool keepdim, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *lines = NULL, *result[2] = {NULL, NULL};
  int dim;
  TRY(lm_dim(lm_ops[op].name, asked, x->ndim, &dim));
  lm_ints dims = {1, {dim}};
  TRY(lm_at_least_1d(x, LM_NO_DTYPE, &lines));
  TRY(check_not_empty(op, lines, &dims));
  TRY(new_reduced(lines, &dims, x->dtype, &result[0]));
  TRY(new_reduced(lines, &dims, LM_I64, &result[1]));
  if (result[0]->numel > 0) {
    if (op == LM_OP_max_dim) {
      TRY(lm_dispatch(op, x->device, &(lm_max_dim_args){.x = lines, .dim = dim, .keepdim = true}, result));
    } else {
      TRY(lm_dispatch(op, x->device, &(lm_min_dim_args){.x = lines, .dim = dim, .keepdim = true}, result));
    }
  }
  for (int i = 0; i < 2; i++) {
    if (!keepdim || x->ndim == 0) drop_dims(result[i], &dims);
    out[i] = result[i];
    result[i] = NULL;
  }
done:
  lm_release(lines);
  lm_release(result[0]);
  lm_release(result[1]);
  return status;
}

lm_status lm_op_max_dim(const lm_max_dim_args *a, lm_tensor **out) {
  return extreme_dim(LM_OP_max_dim, a->x, a->dim, a->keepdim, out);
}

lm_status lm_op_min_dim(const lm_min_dim_args *a, lm_tensor **out) {
  return extreme_dim(LM_OP_min_dim, a->x, a->dim, a->keepdim, out);
}

/* Along a dim, or of the flattened x: what the slot sees then is contiguous and 1-d. */
static lm_status extreme_index(lm_op_id op, lm_tensor *x, int64_t asked, bool keepdim, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *packed = NULL, *lines = NULL, *result = NULL;
  int dim = 0;
  bool flat = asked == LM_NO_DIM;
  if (flat) {
    lm_ints all = {1, {x->numel}};
    if (lm_is_contiguous(x)) {
      packed = lm_retain(x);
    } else {
      TRY(lm_op_clone(&(lm_clone_args){.x = x, .memory_format = LM_CONTIGUOUS}, &packed));
    }
    TRY(lm_op_view(&(lm_view_args){.x = packed, .size = all}, &lines));
  } else {
    TRY(lm_dim(lm_ops[op].name, asked, x->ndim, &dim));
    TRY(lm_at_least_1d(x, LM_NO_DTYPE, &lines));
  }
  lm_ints dims = {1, {dim}};
  TRY(check_not_empty(op, lines, &dims));
  TRY(new_reduced(lines, &dims, LM_I64, &result));
  if (result->numel > 0) {
    if (op == LM_OP_argmax) {
      TRY(lm_dispatch(op, x->device, &(lm_argmax_args){.x = lines, .dim = dim, .keepdim = true}, &result));
    } else {
      TRY(lm_dispatch(op, x->device, &(lm_argmin_args){.x = lines, .dim = dim, .keepdim = true}, &result));
    }
  }
  if (!keepdim || x->ndim == 0) {
    drop_dims(result, &dims);
  } else if (flat) {
    result->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) result->size[d] = result->stride[d] = 1;
  }
  *out = result;
  result = NULL;
done:
  lm_release(packed);
  lm_release(lines);
  lm_release(result);
  return status;
}

lm_status lm_op_argmax(const lm_argmax_args *a, lm_tensor **out) {
  return extreme_index(LM_OP_argmax, a->x, a->dim, a->keepdim, out);
}

lm_status lm_op_argmin(const lm_argmin_args *a, lm_tensor **out) {
  return extreme_index(LM_OP_argmin, a->x, a->dim, a->keepdim, out);
}
