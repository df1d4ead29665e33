/* Classes as ones among zeros, and rows of a table by their numbers, which count from 1. Slots check them all before
 * their first write, and get contiguous int64; embedding's index is 1-d and its out [n, features]. embedding_bag_sums'
 * slot looks at offsets too. */
#include <string.h>

#include "base/message.h"
#include "op/index_checks.h"
#include "op/input_layout.h"

/* The largest label of x, for one_hot without num_classes. */
static lm_status largest(lm_tensor *x, int64_t *out) {
  lm_status status = LM_OK;
  lm_tensor *top = NULL;
  TRY(lm_op_reduce(LM_OP_amax,
                   &(lm_reduce_args){.x = x, .dim = {.n = -1}, .statistic = LM_STATISTIC_AMAX, .dtype = LM_NO_DTYPE},
                   &top));
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
    return lm_fail_int("one_hot", "the number of dims of x", lm_text("less than %d", LM_MAX_DIMS), a->x->ndim);
  }
  TRY(lm_index_int64(LM_OP_one_hot, "x", a->x, &x));
  if (classes < -1 || classes == 0 || (classes == -1 && x->numel == 0)) {
    status = lm_fail_int("one_hot", "num_classes", x->numel == 0 ? "at least 1 for an empty x" : "at least 1, or -1",
                         classes);
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
    return lm_fail_int(lm_ops[op].name, "padding_idx", lm_text("from 1 to %lld", (long long)num), padding_idx);
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
    return lm_fail_int("embedding", "the number of dims of index", lm_text("less than %d", LM_MAX_DIMS),
                       a->index->ndim);
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
    return lm_fail_shape("embedding_backward", "grad", lm_text("%s and the features", lm_shape_of(a->index)),
                         lm_shape_of(a->grad));
  }
  if (a->num < 0) return lm_fail_int("embedding_backward", "num", "at least 0", a->num);
  TRY(lm_check_same_device(LM_OP_embedding_backward, 2, (lm_tensor *[]){a->grad, a->index}));
  TRY(padding_row(LM_OP_embedding_backward, a->padding_idx, a->num, &padding));
  TRY(lm_index_int64(LM_OP_embedding_backward, "index", a->index, &index));
  TRY(flat(index, &line));
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &grad));
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

lm_status lm_op_embedding_bag_sums(const lm_embedding_bag_sums_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_embedding_bag_sums;
  lm_status status = LM_OK;
  lm_tensor *in[4] = {NULL}, *made[2] = {NULL};
  int64_t padding = 0;
  TRY(lm_check_ndim(op, "index", a->index, 1));
  TRY(lm_check_ndim(op, "weight", a->weight, 2));
  TRY(lm_check_ndim(op, "offsets", a->offsets, 1));
  TRY(lm_check_float(op, "weight", a->weight));
  TRY(lm_check_same_device(op, 4, (lm_tensor *[]){a->index, a->weight, a->offsets, a->each}));
  if (a->each && (a->each->dtype != a->weight->dtype || !lm_same_shape(a->each, a->index))) {
    status = lm_fail_value("embedding_bag_sums", "each",
                           lm_text("%s %s", lm_dtype_name(a->weight->dtype), lm_shape_of(a->index)),
                           lm_text("%s %s", lm_dtype_name(a->each->dtype), lm_shape_of(a->each)));
    goto done;
  }
  TRY(padding_row(op, a->padding_idx, a->weight->size[0], &padding));
  TRY(lm_index_int64(op, "index", a->index, &in[0]));
  TRY(lm_to_layout(a->weight, LM_CONTIGUOUS, &in[1]));
  TRY(lm_index_int64(op, "offsets", a->offsets, &in[2]));
  if (a->each) TRY(lm_to_layout(a->each, LM_CONTIGUOUS, &in[3]));
  lm_dtype dtype = (lm_dtype)a->weight->dtype;
  int64_t size[2] = {a->offsets->size[0], a->weight->size[1]};
  TRY(lm_tensor_empty(dtype, a->weight->device, 2, size, LM_CONTIGUOUS, &made[0]));
  TRY(lm_tensor_empty(dtype == LM_F64 ? LM_F64 : LM_F32, a->weight->device, 1, size, LM_CONTIGUOUS, &made[1]));
  TRY(lm_dispatch_or_host(op, a->weight->device,
                          &(lm_embedding_bag_sums_args){in[0], in[1], in[2], in[3], padding, a->means}, made));
  for (int i = 0; i < 2; i++) out[i] = lm_retain(made[i]);
done:
  for (int i = 0; i < 4; i++) lm_release(in[i]);
  for (int i = 0; i < 2; i++) lm_release(made[i]);
  return status;
}
