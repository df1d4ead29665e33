/* Indexing by tensors: any dims at once, as x[index] does it; and nonzero, which makes such indices.
 *
 * Slots get a simpler call: x is permuted so that the indexed dims come first, indices are 1-d
 * contiguous int64 of one length n, none NULL, and out (index_get) or values (index_put_) is a view
 * [n, x's other dims...]. Entries count from 1, or negative from the end. */
#include <string.h>

#include "base/message.h"
#include "op/index_checks.h"
#include "op/input_layout.h"

typedef struct picked {
  int n;        /* indexed dims */
  lm_tensor *x; /* indexed dims first */
  lm_tensor *index[LM_MAX_DIMS];
  int64_t count;       /* of index tuples */
  int ndim, at, width; /* of the result: its dims at .. at + width - 1 are the indices' */
  int64_t size[LM_MAX_DIMS];
} picked;

static void release_picked(picked *p) {
  lm_release(p->x);
  for (int i = 0; i < p->n; i++) lm_release(p->index[i]);
}

/* index as 1-d contiguous int64 on x's device, broadcast to size. */
static lm_status flat_index(lm_op_id op, lm_tensor *index, const lm_tensor *x, const lm_ints *size, int64_t count,
                            lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *here = NULL, *ints = NULL, *wide = NULL, *packed = NULL;
  if (index->device != x->device) {
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = index, .dtype = LM_NO_DTYPE, .device = x->device}, &here));
  }
  TRY(lm_index_int64(op, "an index", here ? here : index, &ints));
  TRY(lm_op_expand(&(lm_expand_args){.x = ints, .size = *size}, &wide));
  TRY(lm_to_layout(wide, LM_CONTIGUOUS, &packed));
  TRY(lm_op_view(&(lm_view_args){.x = packed, .size = {1, {count}}}, out));
done:
  lm_release(here);
  lm_release(ints);
  lm_release(wide);
  lm_release(packed);
  return status;
}

/* On failure p is released. */
static lm_status pick(lm_op_id op, lm_tensor *x, const lm_list *indices, picked *p) {
  lm_status status = LM_OK;
  const char *name = lm_ops[op].name;
  lm_ints wide = {.n = 0};
  lm_permute_args order = {.x = x, .dims = {.n = x->ndim}};
  int first = -1, last = -1, given = 0;
  memset(p, 0, sizeof *p);
  if (indices->n > x->ndim) {
    return lm_fail_value(name, "the number of indices",
                         lm_text("at most %d for x of shape %s", x->ndim, lm_shape_of(x)), lm_text("%d", indices->n));
  }
  for (int d = 0; d < indices->n; d++) {
    const lm_tensor *index = indices->v[d];
    if (!index) continue;
    TRY(lm_check_index(op, "an index", index));
    TRY(lm_check_same_device(op, 2, (lm_tensor *[]){x, indices->v[d]}));
    lm_ints both;
    TRY(lm_broadcast(name, wide.n, wide.v, index->ndim, index->size, &both.n, both.v));
    wide = both;
    if (first < 0) first = d;
    last = d;
    order.dims.v[given++] = d;
  }
  if (given == 0) return lm_fail_value(name, "indices", "at least one tensor", "none");

  /* Indices of adjacent dims stay in their place; otherwise their dims come first (PyTorch's rule). */
  p->at = last - first + 1 == given ? first : 0;
  p->width = wide.n;
  p->ndim = wide.n + x->ndim - given;
  if (p->ndim > LM_MAX_DIMS) {
    return lm_fail_int(name, "the number of dims of the result", lm_text("at most %d", LM_MAX_DIMS), p->ndim);
  }
  p->count = 1;
  for (int i = 0; i < wide.n; i++) {
    p->size[p->at + i] = wide.v[i];
    p->count *= wide.v[i];
  }
  for (int d = 0, rest = 0; d < x->ndim; d++) {
    if (d < indices->n && indices->v[d]) continue;
    order.dims.v[given + rest] = d;
    p->size[rest < p->at ? rest : rest + p->width] = x->size[d];
    rest++;
  }
  TRY(lm_op_permute(&order, &p->x));
  for (int d = 0; d < indices->n; d++) {
    if (!indices->v[d]) continue;
    TRY(flat_index(op, indices->v[d], x, &wide, p->count, &p->index[p->n]));
    p->n++;
  }
done:
  if (status != LM_OK) release_picked(p);
  return status;
}

/* t of the result's sizes, contiguous or one element everywhere, seen as [count, x's other dims...]. */
static lm_status by_tuple(const picked *p, lm_tensor *t, bool one, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS] = {p->count}, stride[LM_MAX_DIMS] = {0}, step = one ? 0 : 1;
  int last = p->ndim - p->width; /* of the view */
  for (int d = p->ndim - 1, to = last; d >= 0; d--) {
    bool indexed = d >= p->at && d < p->at + p->width;
    if (d == p->at + p->width - 1) stride[0] = step;
    if (!indexed) {
      size[to] = t->size[d];
      stride[to--] = step;
    }
    step *= t->size[d];
  }
  return lm_tensor_view(t, last + 1, size, stride, 0, out);
}

lm_status lm_op_index_get(const lm_index_get_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL, *tuples = NULL;
  picked p;
  TRY(pick(LM_OP_index_get, a->x, &a->indices, &p));
  status = lm_tensor_empty((lm_dtype)a->x->dtype, a->x->device, p.ndim, p.size, LM_CONTIGUOUS, &result);
  if (status == LM_OK && result->numel > 0) {
    lm_index_get_args args = {.x = p.x, .indices = {p.n, p.index}};
    status = by_tuple(&p, result, false, &tuples);
    if (status == LM_OK) status = lm_dispatch(LM_OP_index_get, a->x->device, &args, &tuples);
  }
  if (status == LM_OK) *out = lm_retain(result);
  release_picked(&p);
  lm_release(tuples);
  lm_release(result);
done:
  return status;
}

/* values in x's dtype and on its device, broadcast to the result's sizes, apart from x's memory,
 * as [count, x's other dims...]. */
static lm_status prepare_values(lm_op_id op, const picked *p, const lm_tensor *x, lm_tensor *values, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *own = NULL, *wide = NULL, *packed = NULL;
  lm_expand_args expand = {.x = values, .size = {.n = p->ndim}};
  memcpy(expand.size.v, p->size, sizeof p->size);
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)x, values}));
  if (values->dtype != x->dtype || values->device != x->device || values->storage == x->storage) {
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = values, .dtype = (lm_dtype)x->dtype, .device = x->device}, &own));
    expand.x = own;
  }
  status = lm_op_expand(&expand, &wide);
  if (status == LM_E_SHAPE) {
    status = lm_fail_broadcast(lm_ops[op].name, "values", lm_shape_of(values), lm_shape_text(p->ndim, p->size));
  }
  if (status != LM_OK) goto done;
  if (values->numel == 1) {
    TRY(by_tuple(p, wide, true, out));
  } else {
    TRY(lm_to_layout(wide, LM_CONTIGUOUS, &packed));
    TRY(by_tuple(p, packed, false, out));
  }
done:
  lm_release(own);
  lm_release(wide);
  lm_release(packed);
  return status;
}

static lm_status put_into(lm_op_id op, lm_tensor *x, const lm_list *indices, lm_tensor *values, bool accumulate) {
  lm_status status = LM_OK;
  lm_tensor *tuples = NULL;
  picked p;
  TRY(lm_check_fits(lm_ops[op].name, (lm_dtype)x->dtype, values));
  TRY(pick(op, x, indices, &p));
  for (int i = 0; status == LM_OK && i < p.n; i++) {
    lm_tensor *index = p.index[i];
    if (index->storage != x->storage) continue;
    status = lm_op_clone(&(lm_clone_args){.x = index}, &p.index[i]);
    lm_release(index);
    if (status != LM_OK) p.index[i] = NULL;
  }
  if (status == LM_OK) status = prepare_values(op, &p, x, values, &tuples);
  if (status == LM_OK && tuples->numel > 0) {
    lm_index_put__args args = {.x = p.x, .indices = {p.n, p.index}, .values = tuples, .accumulate = accumulate};
    status = lm_dispatch(LM_OP_index_put_, x->device, &args, &p.x);
  }
  release_picked(&p);
  lm_release(tuples);
done:
  return status;
}

lm_status lm_op_index_put_(const lm_index_put__args *a, lm_tensor **out) {
  lm_status status = put_into(LM_OP_index_put_, a->x, &a->indices, a->values, a->accumulate);
  if (status == LM_OK) *out = lm_retain(a->x);
  return status;
}

lm_status lm_op_index_put(const lm_index_put_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL;
  TRY(lm_op_clone(&(lm_clone_args){.x = a->x}, &result));
  TRY(put_into(LM_OP_index_put, result, &a->indices, a->values, a->accumulate));
  *out = result;
  result = NULL;
done:
  lm_release(result);
  return status;
}

/* ---- nonzero: the slot gets a contiguous bool mask and an out of the right length */

static lm_status mask_of(lm_tensor *x, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *zero = NULL, *mask = NULL;
  if (x->dtype == LM_BOOL) return lm_to_private_copy(x, out);
  TRY(lm_tensor_number(0, &zero));
  TRY(lm_pointwise_run(LM_OP_ne, 2, (lm_tensor *[]){x, zero}, NULL, NULL, &mask));
  TRY(lm_to_layout(mask, LM_CONTIGUOUS, out));
done:
  lm_release(zero);
  lm_release(mask);
  return status;
}

lm_status lm_op_nonzero(const lm_nonzero_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *mask = NULL, *total = NULL, *result = NULL;
  int64_t count;
  TRY(mask_of(a->x, &mask));
  if (a->as_tuple && mask->ndim == 0) { /* as PyTorch: a list of one */
    lm_tensor *list;
    TRY(lm_op_view(&(lm_view_args){.x = mask, .size = {1, {1}}}, &list));
    lm_release(mask);
    mask = list;
  }
  TRY(lm_op_reduce(LM_OP_sum, &(lm_reduce_args){.x = mask, .dim = {.n = -1}, .dtype = LM_NO_DTYPE}, &total));
  TRY(lm_tensor_item_i64(total, &count));
  TRY(lm_tensor_empty(LM_I64, a->x->device, 2, (int64_t[]){count, mask->ndim}, LM_CONTIGUOUS, &result));
  if (result->numel > 0) TRY(lm_dispatch(LM_OP_nonzero, a->x->device, &(lm_nonzero_args){.x = mask}, &result));
  *out = result;
  result = NULL;
done:
  lm_release(mask);
  lm_release(total);
  lm_release(result);
  return status;
}

/* The slot gets x and the mask contiguous, and an out of the right length. */
lm_status lm_op_masked_values(const lm_masked_values_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *mask = NULL, *total = NULL, *line = NULL, *indices = NULL, *list = NULL, *result = NULL;
  int64_t count;
  if (a->mask->dtype != LM_BOOL || !lm_same_shape(a->mask, a->x)) {
    return lm_fail_value("masked_values", "mask", lm_text("a bool tensor of shape %s as x", lm_shape_of(a->x)),
                         lm_text("%s %s", lm_dtype_name((lm_dtype)a->mask->dtype), lm_shape_of(a->mask)));
  }
  TRY(lm_check_same_device(LM_OP_masked_values, 2, (lm_tensor *[]){a->x, a->mask}));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(lm_to_private_copy(a->mask, &mask));
  if (LM_DEVICE_KIND(x->device) != LM_CPU) { /* which have no kernel for it */
    TRY(lm_tensor_view(mask, 1, &x->numel, (int64_t[]){1}, 0, &line));
    TRY(lm_op_nonzero(&(lm_nonzero_args){.x = line}, &indices));
    TRY(lm_tensor_view(indices, 1, indices->size, (int64_t[]){1}, 0, &list));
    lm_release(line);
    line = NULL;
    TRY(lm_tensor_view(x, 1, &x->numel, (int64_t[]){1}, 0, &line));
    TRY(lm_op_index_select(&(lm_index_select_args){.x = line, .dim = 0, .index = list}, &result));
  } else {
    TRY(lm_op_reduce(LM_OP_sum, &(lm_reduce_args){.x = mask, .dim = {.n = -1}, .dtype = LM_NO_DTYPE}, &total));
    TRY(lm_tensor_item_i64(total, &count));
    TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, 1, &count, LM_CONTIGUOUS, &result));
    if (count > 0) TRY(lm_dispatch(LM_OP_masked_values, x->device, &(lm_masked_values_args){x, mask}, &result));
  }
  *out = result;
  result = NULL;
done:
  lm_release(x);
  lm_release(mask);
  lm_release(total);
  lm_release(line);
  lm_release(indices);
  lm_release(list);
  lm_release(result);
  return status;
}
