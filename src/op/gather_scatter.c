/* Picking or adding along one dim. Indices count from 1; slots check them all before their first write.
 *
 * What slots get beyond op/backend.h: index tensors are contiguous int64; x of a 0-d call is [1]; index_add's out holds
 * x already, and its out and src are contiguous. */
#include <string.h>

#include "op/index_checks.h"
#include "op/input_layout.h"

/* t with one dim at least. */
static lm_status with_dim(lm_tensor *t, lm_tensor **out) {
  if (t->ndim == 0) return lm_op_unsqueeze(&(lm_unsqueeze_args){.x = t, .dim = 0}, out);
  *out = lm_retain(t);
  return LM_OK;
}

static lm_status int64_with_dim(lm_op_id op, lm_tensor *index, lm_tensor **out) {
  lm_tensor *converted = NULL;
  lm_status status = lm_index_int64(op, "index", index, &converted);
  if (status == LM_OK) status = with_dim(converted, out);
  lm_release(converted);
  return status;
}

static lm_status check_same_dtype(lm_op_id op, const lm_tensor *x, const lm_tensor *src) {
  if (x->dtype == src->dtype) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: src is %s, x is %s; convert src with :to(\"%s\")", lm_ops[op].name,
                 lm_dtype_name((lm_dtype)src->dtype), lm_dtype_name((lm_dtype)x->dtype),
                 lm_dtype_name((lm_dtype)x->dtype));
}

/* ---- gather and scatter_add: an index for every element */

/* index has t's ndim and is no larger than t, in dim (if not negative) any size. */
static lm_status check_covers(lm_op_id op, const char *name, const lm_tensor *t, const lm_tensor *index, int dim) {
  bool fits = t->ndim == index->ndim;
  for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || index->size[d] <= t->size[d];
  if (fits || index->numel == 0) return LM_OK;
  if (dim < 0) {
    return lm_fail(LM_E_SHAPE, "%s: index is %s, %s is %s; index may not be larger in any dim", lm_ops[op].name,
                   lm_shape_of(index), name, lm_shape_of(t));
  }
  return lm_fail(LM_E_SHAPE, "%s: index is %s, %s is %s; index may be larger in dim %d only", lm_ops[op].name,
                 lm_shape_of(index), name, lm_shape_of(t), dim + 1);
}

lm_status lm_op_gather(const lm_gather_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *result = NULL;
  int dim;
  TRY(lm_check_same_device(LM_OP_gather, 2, (lm_tensor *[]){a->x, a->index}));
  TRY(lm_dim("gather", a->dim, a->x->ndim, &dim));
  TRY(with_dim(a->x, &x));
  TRY(int64_with_dim(LM_OP_gather, a->index, &index));
  TRY(check_covers(LM_OP_gather, "x", x, index, dim));
  TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, index->ndim, index->size, LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    TRY(lm_dispatch(LM_OP_gather, x->device, &(lm_gather_args){.x = x, .dim = dim, .index = index}, &result));
  }
  result->ndim = a->index->ndim;
  *out = result;
  result = NULL;
done:
  lm_release(x);
  lm_release(index);
  lm_release(result);
  return status;
}

/* x += src at index, in x's memory. */
static lm_status scatter_into(lm_op_id op, lm_tensor *target, int64_t asked, lm_tensor *given, lm_tensor *added) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *apart = NULL, *src = NULL;
  int dim;
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){target, given, added}));
  TRY(check_same_dtype(op, target, added));
  TRY(lm_dim(lm_ops[op].name, asked, target->ndim, &dim));
  TRY(with_dim(target, &x));
  TRY(int64_with_dim(op, given, &index));
  if (added->storage == target->storage) TRY(lm_op_clone(&(lm_clone_args){.x = added}, &apart));
  TRY(with_dim(apart ? apart : added, &src));
  if (index->storage == target->storage) {
    lm_tensor *fresh = NULL;
    TRY(lm_op_clone(&(lm_clone_args){.x = index}, &fresh));
    lm_release(index);
    index = fresh;
  }
  TRY(check_covers(op, "x", x, index, dim));
  TRY(check_covers(op, "src", src, index, -1));
  if (index->numel > 0) {
    lm_scatter_add__args args = {.x = x, .dim = dim, .index = index, .src = src};
    TRY(lm_dispatch(LM_OP_scatter_add_, x->device, &args, &x));
  }
done:
  lm_release(x);
  lm_release(index);
  lm_release(apart);
  lm_release(src);
  return status;
}

lm_status lm_op_scatter_add_(const lm_scatter_add__args *a, lm_tensor **out) {
  lm_status status = scatter_into(LM_OP_scatter_add_, a->x, a->dim, a->index, a->src);
  if (status == LM_OK) *out = lm_retain(a->x);
  return status;
}

lm_status lm_op_scatter_add(const lm_scatter_add_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL;
  TRY(lm_op_clone(&(lm_clone_args){.x = a->x}, &result));
  TRY(scatter_into(LM_OP_scatter_add, result, a->dim, a->index, a->src));
  *out = result;
  result = NULL;
done:
  lm_release(result);
  return status;
}

/* ---- whole entries of a dim, named by a 1-d index */

static lm_status entry_index(lm_op_id op, lm_tensor *index, lm_tensor **out) {
  if (index->ndim <= 1) return int64_with_dim(op, index, out);
  return lm_fail(LM_E_SHAPE, "%s: index has to be 1-d, got %s", lm_ops[op].name, lm_shape_of(index));
}

lm_status lm_op_index_select(const lm_index_select_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *result = NULL;
  int dim;
  int64_t size[LM_MAX_DIMS];
  TRY(lm_check_same_device(LM_OP_index_select, 2, (lm_tensor *[]){a->x, a->index}));
  TRY(lm_dim("index_select", a->dim, a->x->ndim, &dim));
  TRY(entry_index(LM_OP_index_select, a->index, &index));
  TRY(with_dim(a->x, &x));
  memcpy(size, x->size, sizeof size);
  size[dim] = index->numel;
  TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, x->ndim, size, LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    lm_index_select_args args = {.x = x, .dim = dim, .index = index};
    TRY(lm_dispatch(LM_OP_index_select, x->device, &args, &result));
  }
  if (a->x->ndim == 0 && index->numel == 1) result->ndim = 0;
  *out = result;
  result = NULL;
done:
  lm_release(x);
  lm_release(index);
  lm_release(result);
  return status;
}

lm_status lm_op_index_add(const lm_index_add_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *given = NULL, *src = NULL, *result = NULL;
  int dim;
  TRY(lm_check_same_device(LM_OP_index_add, 3, (lm_tensor *[]){a->x, a->index, a->src}));
  TRY(check_same_dtype(LM_OP_index_add, a->x, a->src));
  TRY(lm_dim("index_add", a->dim, a->x->ndim, &dim));
  TRY(entry_index(LM_OP_index_add, a->index, &index));
  TRY(with_dim(a->x, &x));
  TRY(with_dim(a->src, &given));
  bool fits = given->ndim == x->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = given->size[d] == (d == dim ? index->numel : x->size[d]);
  if (!fits) {
    status = lm_fail(LM_E_SHAPE, "index_add: src is %s; it needs x's sizes, %s, but for %lld indices in dim %d",
                     lm_shape_of(a->src), lm_shape_of(a->x), (long long)a->index->numel, dim + 1);
    goto done;
  }
  TRY(lm_laid_out(given, LM_CONTIGUOUS, &src));
  TRY(lm_op_clone(&(lm_clone_args){.x = x, .memory_format = LM_CONTIGUOUS}, &result));
  if (src->numel > 0) {
    lm_index_add_args args = {.x = x, .dim = dim, .index = index, .src = src};
    TRY(lm_dispatch(LM_OP_index_add, x->device, &args, &result));
  }
  result->ndim = a->x->ndim;
  *out = result;
  result = NULL;
done:
  lm_release(x);
  lm_release(index);
  lm_release(given);
  lm_release(src);
  lm_release(result);
  return status;
}
