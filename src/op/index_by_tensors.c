/* Implements x[index] with tensors for any dims, and nonzero, which returns such indices.
 *
 * Kernels get a simpler call: x is permuted so that the indexed dims come first, indices are 1-d contiguous int64 of
 * one length n, none NULL, and out (index_get) or values (index_put_) is a view [n, x's other dims...]. Entries count
 * from 1, or negative from the end. */
#include <string.h>

#include "base/message.h"
#include "op/frame.h"
#include "op/index_checks.h"

typedef struct picked {
  int n;        /* number of indexed dims */
  lm_tensor *x; /* x permuted, indexed dims first */
  lm_tensor *index[LM_MAX_DIMS];
  int64_t count;       /* number of index tuples */
  int ndim, at, width; /* result's ndim; its dims at .. at + width - 1 are the indices' */
  int64_t size[LM_MAX_DIMS];
} picked;

/* Replaces *index by 1-d contiguous int64 on x's device, broadcast to size. */
static lm_status flat_index(lm_frame *f, lm_tensor **index, const lm_tensor *x, const lm_ints *size, int64_t count) {
  lm_tensor *here = NULL;
  if ((*index)->device != x->device) {
    NEED(lm_op_to_copy(&(lm_to_copy_args){.x = *index, .dtype = LM_NO_DTYPE, .device = x->device}, &here));
    *index = lm_frame_hold(f, here);
  }
  NEED(lm_frame_index(f, "an index", index));
  NEED(lm_frame_expand(f, index, size, 0));
  NEED(lm_frame_layout(f, index, LM_CONTIGUOUS));
  return lm_frame_reshape(f, index, 1, &count);
}

static lm_status prepare_indices(lm_frame *f, lm_tensor *x, const lm_list *indices, picked *p) {
  const lm_op_id op = f->op;
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
    NEED(lm_check_index(op, "an index", index));
    NEED(lm_check_same_device(op, 2, (lm_tensor *[]){x, indices->v[d]}));
    lm_ints both;
    NEED(lm_broadcast(name, wide.n, wide.v, index->ndim, index->size, &both.n, both.v));
    wide = both;
    if (first < 0) first = d;
    last = d;
    order.dims.v[given++] = d;
  }
  if (given == 0) return lm_fail_value(name, "indices", "at least one tensor", "none");

  /* Indices of adjacent dims keep their position; otherwise their dims come first (PyTorch's rule). */
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
  NEED(lm_op_permute(&order, &p->x));
  lm_frame_hold(f, p->x);
  for (int d = 0; d < indices->n; d++) {
    if (!indices->v[d]) continue;
    p->index[p->n] = indices->v[d];
    NEED(flat_index(f, &p->index[p->n++], x, &wide, p->count));
  }
  return LM_OK;
}

/* Replaces *t, of the result's sizes, contiguous or one repeated element, by a view [count, x's other dims...]. */
static lm_status view_positions_first(lm_frame *f, const picked *p, lm_tensor **t, bool one) {
  lm_tensor *view = NULL;
  int64_t size[LM_MAX_DIMS] = {p->count}, stride[LM_MAX_DIMS] = {0}, step = one ? 0 : 1;
  int last = p->ndim - p->width; /* last dim of the view */
  for (int d = p->ndim - 1, to = last; d >= 0; d--) {
    bool indexed = d >= p->at && d < p->at + p->width;
    if (d == p->at + p->width - 1) stride[0] = step;
    if (!indexed) {
      size[to] = (*t)->size[d];
      stride[to--] = step;
    }
    step *= (*t)->size[d];
  }
  lm_status status = lm_tensor_view(*t, last + 1, size, stride, 0, &view);
  if (status == LM_OK) *t = lm_frame_hold(f, view);
  return status;
}

lm_status lm_op_index_get(const lm_index_get_args *a, lm_tensor **out) {
  picked p;
  LM_FRAME(f, LM_OP_index_get);
  NEED(prepare_indices(&f, a->x, &a->indices, &p));
  NEED(lm_frame_result(&f, 0, a->x->dtype, a->x->device, p.ndim, p.size, LM_CONTIGUOUS));
  NEED(view_positions_first(&f, &p, &f.slot[0], false));
  NEED(lm_frame_dispatch(&f, a->x->device, &(lm_index_get_args){.x = p.x, .indices = {p.n, p.index}}));
  return lm_frame_end(&f, out);
}

/* Replaces *values by values in x's dtype and device, broadcast to the result's sizes, not in x's memory, as [count,
 * x's other dims...]. */
static lm_status prepare_values(lm_frame *f, const picked *p, const lm_tensor *x, lm_tensor **values) {
  lm_tensor *own = NULL;
  const lm_tensor *given = *values;
  lm_ints size = {.n = p->ndim};
  memcpy(size.v, p->size, sizeof p->size);
  NEED(lm_check_same_device(f->op, 2, (lm_tensor *[]){(lm_tensor *)x, *values}));
  if (given->dtype != x->dtype || given->device != x->device || given->storage == x->storage) {
    NEED(lm_op_to_copy(&(lm_to_copy_args){.x = *values, .dtype = x->dtype, .device = x->device}, &own));
    *values = lm_frame_hold(f, own);
  }
  lm_status status = lm_frame_expand(f, values, &size, 0);
  if (status == LM_E_SHAPE)
    status = lm_fail_broadcast(lm_ops[f->op].name, "values", lm_shape_of(given), lm_shape_text(p->ndim, p->size));
  NEED(status);
  const bool one = given->numel == 1;
  if (!one) NEED(lm_frame_layout(f, values, LM_CONTIGUOUS));
  return view_positions_first(f, p, values, one);
}

static lm_status put_into(lm_frame *f, lm_tensor *x, const lm_list *indices, lm_tensor *values, bool accumulate) {
  picked p;
  NEED(lm_check_fits(lm_ops[f->op].name, x->dtype, values));
  NEED(prepare_indices(f, x, indices, &p));
  for (int i = 0; i < p.n; i++) {
    lm_tensor *own = NULL;
    if (p.index[i]->storage != x->storage) continue;
    NEED(lm_op_clone(&(lm_clone_args){.x = p.index[i]}, &own));
    p.index[i] = lm_frame_hold(f, own);
  }
  NEED(prepare_values(f, &p, x, &values));
  if (values->numel > 0) {
    lm_index_put__args args = {.x = p.x, .indices = {p.n, p.index}, .values = values, .accumulate = accumulate};
    NEED(lm_dispatch(LM_OP_index_put_, x->device, &args, &p.x));
  }
  return LM_OK;
}

lm_status lm_op_index_put_(const lm_index_put__args *a, lm_tensor **out) {
  LM_FRAME(f, LM_OP_index_put_);
  NEED(put_into(&f, a->x, &a->indices, a->values, a->accumulate));
  f.result[0] = lm_retain(a->x);
  return lm_frame_end(&f, out);
}

lm_status lm_op_index_put(const lm_index_put_args *a, lm_tensor **out) {
  LM_FRAME(f, LM_OP_index_put);
  NEED(lm_op_clone(&(lm_clone_args){.x = a->x}, &f.result[0]));
  NEED(put_into(&f, f.result[0], &a->indices, a->values, a->accumulate));
  return lm_frame_end(&f, out);
}

/* ---- nonzero: the kernel gets a contiguous bool mask and an out of the right length */

static lm_status prepare_mask(lm_frame *f, lm_tensor **x) {
  lm_tensor *mask = NULL;
  LM_OWNED *zero = NULL;
  if ((*x)->dtype == LM_BOOL) return lm_frame_private(f, x);
  NEED(lm_tensor_number(0, &zero));
  NEED(lm_pointwise_run(LM_OP_ne, 2, (lm_tensor *[]){*x, zero}, NULL, NULL, &mask));
  *x = lm_frame_hold(f, mask);
  return lm_frame_layout(f, x, LM_CONTIGUOUS);
}

/* Counts the true elements of the mask. */
static lm_status count_true(lm_frame *f, lm_tensor *mask, int64_t *count) {
  lm_tensor *total = NULL;
  lm_status status =
      lm_op_reduce(LM_OP_sum, &(lm_reduce_args){.x = mask, .dim = {.n = -1}, .dtype = LM_NO_DTYPE}, &total);
  return status == LM_OK ? lm_tensor_item_i64(lm_frame_hold(f, total), count) : status;
}

lm_status lm_op_nonzero(const lm_nonzero_args *a, lm_tensor **out) {
  lm_nonzero_args run = *a;
  int64_t size[2];
  LM_FRAME(f, LM_OP_nonzero);
  NEED(prepare_mask(&f, &run.x));
  if (a->as_tuple) NEED(lm_frame_at_least_1d(&f, &run.x)); /* a 0-d x yields a list of one, as in PyTorch */
  size[1] = run.x->ndim;
  NEED(count_true(&f, run.x, &size[0]));
  NEED(lm_frame_result(&f, 0, LM_I64, a->x->device, 2, size, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, a->x->device, &run));
  return lm_frame_end(&f, out);
}

/* Runs masked_values; the kernel gets contiguous x and mask, and an out of the right length. */
lm_status lm_op_masked_values(const lm_masked_values_args *a, lm_tensor **out) {
  lm_masked_values_args run = *a;
  lm_tensor *list = NULL;
  int64_t count;
  LM_FRAME(f, LM_OP_masked_values);
  if (a->mask->dtype != LM_BOOL || !lm_same_shape(a->mask, a->x)) {
    return lm_fail_value("masked_values", "mask", lm_text("a bool tensor of shape %s as x", lm_shape_of(a->x)),
                         lm_text("%s %s", lm_dtype_name(a->mask->dtype), lm_shape_of(a->mask)));
  }
  NEED(lm_check_same_device(f.op, 2, (lm_tensor *[]){a->x, a->mask}));
  NEED(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  NEED(lm_frame_private(&f, &run.mask));
  if (LM_DEVICE_KIND(a->x->device) != LM_CPU) { /* GPUs have no kernel for it */
    NEED(lm_frame_reshape(&f, &run.x, 1, &run.x->numel));
    NEED(lm_frame_reshape(&f, &run.mask, 1, &run.mask->numel));
    NEED(lm_op_nonzero(&(lm_nonzero_args){.x = run.mask}, &list));
    lm_frame_hold(&f, list);
    NEED(lm_frame_reshape(&f, &list, 1, &list->numel));
    NEED(lm_op_index_select(&(lm_index_select_args){.x = run.x, .dim = 0, .index = list}, &f.result[0]));
    return lm_frame_end(&f, out);
  }
  NEED(count_true(&f, run.mask, &count));
  NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, 1, &count, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, run.x->device, &run));
  return lm_frame_end(&f, out);
}
