/* Joining, and picking or adding along one dim. Indices count from 1; slots check them all before
 * their first write.
 *
 * What slots get beyond op/backend.h: index tensors are contiguous int64; x of a 0-d call is [1];
 * cat's list has no tensors to be skipped; index_add's out holds x already, and its out and src are
 * contiguous; embedding's index is 1-d and its out [n, features]. */
#include <string.h>

#include "base/mem.h"
#include "op/layout.h"

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

/* ---- cat */

static bool is_skipped(const lm_tensor *t) { return t->ndim == 1 && t->size[0] == 0; } /* as PyTorch does */

/* Output sizes; *first is the first tensor that counts, NULL when all are of size [0]. */
static lm_status cat_size(const lm_cat_args *a, const lm_tensor **first, int *dim, int64_t *size, bool *last) {
  lm_status status = LM_OK;
  *first = NULL;
  *last = true;
  for (int i = 0; i < a->tensors.n; i++) {
    const lm_tensor *t = a->tensors.v[i];
    if (!t) return lm_fail(LM_E_ARG, "cat: entry %d of the list is nil", i + 1);
    if (t->ndim == 0) return lm_fail(LM_E_SHAPE, "cat: entry %d is 0-d and has no dim to join; use lm.stack", i + 1);
    if (is_skipped(t)) continue;
    if (!*first) {
      *first = t;
      TRY(lm_dim("cat", a->dim == LM_NO_DIM ? 0 : a->dim, t->ndim, dim));
      memcpy(size, t->size, sizeof t->size);
      size[*dim] = 0;
    }
    bool fits = t->ndim == (*first)->ndim;
    for (int d = 0; fits && d < t->ndim; d++) fits = d == *dim || t->size[d] == size[d];
    if (!fits) {
      return lm_fail(LM_E_SHAPE, "cat: entry %d is %s, the first is %s; sizes have to agree in all dims but dim %d",
                     i + 1, lm_shape_of(t), lm_shape_of(*first), *dim + 1);
    }
    size[*dim] += t->size[*dim];
    *last = *last && lm_format_of(t) == LM_CHANNELS_LAST;
  }
done:
  return status;
}

lm_status lm_op_cat(const lm_cat_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor **list = NULL, *result = NULL;
  const lm_tensor *first;
  int dim = 0;
  int64_t size[LM_MAX_DIMS] = {0};
  bool channels_last;
  if (a->tensors.n == 0) return lm_fail(LM_E_ARG, "cat: the list is empty");
  TRY(cat_size(a, &first, &dim, size, &channels_last));
  TRY(lm_check_same_device(LM_OP_cat, a->tensors.n, a->tensors.v));
  TRY(lm_tensor_empty(lm_result_type(a->tensors.n, a->tensors.v), a->tensors.v[0]->device, first ? first->ndim : 1,
                      size, first && channels_last ? LM_CHANNELS_LAST : LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    lm_cat_args args = {.tensors = {0, NULL}, .dim = dim};
    list = lm_malloc(sizeof *list * (size_t)a->tensors.n);
    if (!list) {
      status = LM_E_OOM;
      goto done;
    }
    args.tensors.v = list;
    for (int i = 0; i < a->tensors.n; i++) {
      if (a->tensors.v[i]->numel > 0) list[args.tensors.n++] = a->tensors.v[i];
    }
    TRY(lm_dispatch(LM_OP_cat, result->device, &args, &result));
  }
  *out = result;
  result = NULL;
done:
  lm_free(list);
  lm_release(result);
  return status;
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

/* ---- classes and embeddings */

/* The largest label of x, for one_hot without num_classes. */
static lm_status largest(lm_tensor *x, int64_t *out) {
  lm_status status = LM_OK;
  lm_tensor *top = NULL;
  TRY(lm_op_amax(&(lm_amax_args){.x = x, .dim = {.n = -1}}, &top));
  TRY(lm_tensor_item_i64(top, out));
done:
  lm_release(top);
  return status;
}

lm_status lm_op_one_hot(const lm_one_hot_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *result = NULL;
  int64_t size[LM_MAX_DIMS], classes = a->num_classes;
  if (a->x->ndim == LM_MAX_DIMS) {
    return lm_fail(LM_E_SHAPE, "one_hot: %s has %d dims already, the most there can be", lm_shape_of(a->x),
                   LM_MAX_DIMS);
  }
  TRY(lm_index_int64(LM_OP_one_hot, "x", a->x, &x));
  if (classes < -1 || classes == 0 || (classes == -1 && x->numel == 0)) {
    status = lm_fail(LM_E_ARG, "one_hot: num_classes is %lld for %s; it has to be 1 or more", (long long)classes,
                     lm_shape_of(x));
    goto done;
  }
  if (classes == -1) TRY(largest(x, &classes));
  if (classes < 1) classes = 1; /* no label is valid then: the kernel says which */
  memcpy(size, x->size, sizeof size);
  size[x->ndim] = classes;
  TRY(lm_tensor_empty(LM_I64, x->device, x->ndim + 1, size, LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    TRY(lm_dispatch(LM_OP_one_hot, x->device, &(lm_one_hot_args){.x = x, .num_classes = classes}, &result));
  }
  *out = result;
  result = NULL;
done:
  lm_release(x);
  lm_release(result);
  return status;
}

/* 0: none; otherwise 1..num, or negative from the end, normalized. */
static lm_status padding_row(lm_op_id op, int64_t padding_idx, int64_t num, int64_t *out) {
  int64_t row = padding_idx < 0 ? padding_idx + num + 1 : padding_idx;
  if (padding_idx != 0 && (row < 1 || row > num)) {
    return lm_fail(LM_E_INDEX, "%s: padding_idx is %lld; rows go from 1 to %lld", lm_ops[op].name,
                   (long long)padding_idx, (long long)num);
  }
  *out = row;
  return LM_OK;
}

static lm_status flat(lm_tensor *t, lm_tensor **out) {
  return lm_op_view(&(lm_view_args){.x = t, .size = {1, {t->numel}}}, out);
}

lm_status lm_op_embedding(const lm_embedding_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *index = NULL, *line = NULL, *rows = NULL, *result = NULL;
  int64_t size[LM_MAX_DIMS], padding = 0;
  TRY(lm_check_ndim(LM_OP_embedding, "weight", a->weight, 2));
  TRY(lm_check_same_device(LM_OP_embedding, 2, (lm_tensor *[]){a->index, a->weight}));
  TRY(padding_row(LM_OP_embedding, a->padding_idx, a->weight->size[0], &padding));
  if (a->index->ndim == LM_MAX_DIMS) {
    return lm_fail(LM_E_SHAPE, "embedding: index of %s has %d dims already, the most there can be",
                   lm_shape_of(a->index), LM_MAX_DIMS);
  }
  TRY(lm_index_int64(LM_OP_embedding, "index", a->index, &index));
  TRY(flat(index, &line));
  memcpy(size, index->size, sizeof size);
  size[index->ndim] = a->weight->size[1];
  TRY(lm_tensor_empty((lm_dtype)a->weight->dtype, a->weight->device, index->ndim + 1, size, LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    TRY(lm_op_view(&(lm_view_args){.x = result, .size = {2, {index->numel, a->weight->size[1]}}}, &rows));
    lm_embedding_args args = {.index = line, .weight = a->weight, .padding_idx = padding};
    TRY(lm_dispatch(LM_OP_embedding, a->weight->device, &args, &rows));
  }
  *out = result;
  result = NULL;
done:
  lm_release(index);
  lm_release(line);
  lm_release(rows);
  lm_release(result);
  return status;
}

lm_status lm_op_embedding_backward(const lm_embedding_backward_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *index = NULL, *line = NULL, *grad = NULL, *rows = NULL, *result = NULL;
  int64_t padding = 0, features = a->grad->ndim ? a->grad->size[a->grad->ndim - 1] : 0;
  bool fits = a->grad->ndim == a->index->ndim + 1;
  for (int d = 0; fits && d < a->index->ndim; d++) fits = a->grad->size[d] == a->index->size[d];
  if (!fits) {
    return lm_fail(LM_E_SHAPE, "embedding_backward: grad is %s, index is %s; grad has index's sizes and the features",
                   lm_shape_of(a->grad), lm_shape_of(a->index));
  }
  if (a->num < 0) return lm_fail(LM_E_ARG, "embedding_backward: num is %lld", (long long)a->num);
  TRY(lm_check_same_device(LM_OP_embedding_backward, 2, (lm_tensor *[]){a->grad, a->index}));
  TRY(padding_row(LM_OP_embedding_backward, a->padding_idx, a->num, &padding));
  TRY(lm_index_int64(LM_OP_embedding_backward, "index", a->index, &index));
  TRY(flat(index, &line));
  TRY(lm_laid_out(a->grad, LM_CONTIGUOUS, &grad));
  TRY(lm_op_view(&(lm_view_args){.x = grad, .size = {2, {index->numel, features}}}, &rows));
  TRY(lm_tensor_empty((lm_dtype)grad->dtype, grad->device, 2, (int64_t[]){a->num, features}, LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    lm_embedding_backward_args args = {.grad = rows, .index = line, .num = a->num, .padding_idx = padding};
    TRY(lm_dispatch(LM_OP_embedding_backward, grad->device, &args, &result));
  }
  *out = result;
  result = NULL;
done:
  lm_release(index);
  lm_release(line);
  lm_release(grad);
  lm_release(rows);
  lm_release(result);
  return status;
}
