/* Gathers, scatters and adds along one dim. Indices count from 1; kernels check all of them before their first write.
 *
 * Kernels get, beyond op/backend.h: int64 indices, contiguous except expanded dims, which gather's and scatter's may
 * have; [1] as x of a 0-d call. index_add's out holds x already; its out and src are contiguous. scatter_along's out
 * holds x too, except on the CPU, where x may be another tensor. */
#include "base/message.h"
#include "op/operand_checks.h"

/* Replaces *index by int64 of at least one dim. Expanded dims stay expanded, without memory of their own. */
static lm_status int64_with_dim(lm_frame *f, lm_tensor **index) {
  const lm_tensor *given = *index;
  lm_tensor *stored = NULL, *wide = NULL;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  bool expanded = false;
  for (int d = 0; d < given->ndim; d++) {
    bool shared = given->stride[d] == 0 && given->size[d] > 1;
    expanded |= shared;
    size[d] = shared ? 1 : given->size[d];
  }
  if (expanded) {
    NEED(lm_tensor_view(*index, given->ndim, size, given->stride, 0, &stored));
    *index = lm_frame_hold(f, stored);
  }
  NEED(lm_frame_index(f, "index", index));
  if (expanded) {
    for (int d = 0; d < given->ndim; d++) stride[d] = size[d] == given->size[d] ? (*index)->stride[d] : 0;
    NEED(lm_tensor_view(*index, given->ndim, given->size, stride, 0, &wide));
    *index = lm_frame_hold(f, wide);
  }
  return lm_frame_at_least_1d(f, index);
}

/* ---- gather, scatter and its variants: an index for every element */

/* Checks that index has t's ndim and no larger sizes, except in dim (if not negative). */
static lm_status check_covers(lm_op_id op, const char *name, const lm_tensor *t, const lm_tensor *index, int dim) {
  bool fits = t->ndim == index->ndim;
  for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || index->size[d] <= t->size[d];
  if (fits || index->numel == 0) return LM_OK;
  if (dim < 0) {
    return lm_fail_value(lm_ops[op].name, "index", lm_text("no larger than %s in any dim", name),
                         lm_text("%s for %s of %s", lm_shape_of(index), name, lm_shape_of(t)));
  }
  return lm_fail_value(lm_ops[op].name, "index", lm_text("no larger than %s except in dim %d", name, dim + 1),
                       lm_text("%s for %s of %s", lm_shape_of(index), name, lm_shape_of(t)));
}

lm_status lm_op_gather(const lm_gather_args *a, lm_tensor **out) {
  lm_gather_args run = *a;
  LM_FRAME(f, LM_OP_gather);
  NEED(lm_check_same_device(f.op, 2, (lm_tensor *[]){a->x, a->index}));
  NEED(lm_frame_line(&f, &run.x, &run.dim));
  NEED(int64_with_dim(&f, &run.index));
  NEED(check_covers(f.op, "x", run.x, run.index, (int)run.dim));
  NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, run.index->ndim, run.index->size, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, run.x->device, &run));
  f.result[0]->ndim = a->index->ndim;
  return lm_frame_end(&f, out);
}

/* Prepares *src: copies it if it shares the target's memory, and expands a number or 0-d tensor to index's sizes. */
static lm_status prepare_source(lm_frame *f, const lm_tensor *target, const lm_tensor *index, lm_tensor **src) {
  lm_tensor *own = NULL;
  const bool one = (*src)->ndim == 0 && index->ndim > 0;
  if (one || (*src)->number || (*src)->storage == target->storage) {
    NEED(lm_op_to_copy(&(lm_to_copy_args){.x = *src, .dtype = target->dtype, .device = target->device}, &own));
    *src = lm_frame_hold(f, own);
  }
  if (one) {
    const lm_ints all = lm_sizes_between(index->ndim, index->size, 0, 0);
    NEED(lm_frame_expand(f, src, &all, 0));
  }
  return lm_frame_at_least_1d(f, src);
}

/* Runs the scatter kernel on x. was: the values to start from: x itself or, on the CPU, another tensor of x's sizes. */
static lm_status run_scatter(lm_tensor *was, lm_tensor *x, int64_t dim, lm_tensor *index, lm_tensor *src, int how) {
  lm_scatter_along_args args = {.x = was, .dim = dim, .index = index, .src = src, .how = how};
  return lm_dispatch(LM_OP_scatter_along, x->device, &args, &x);
}

/* Scatters into target, starting from the values of `given`, which may be target itself. */
static lm_status scatter_into(lm_frame *f, const lm_scatter_along_args *a, lm_tensor *given, lm_tensor *target) {
  lm_tensor *was = given, *x = target, *index = a->index, *src = a->src, *one = NULL;
  int64_t dim = a->dim;
  NEED(lm_check_same_device(f->op, 3, (lm_tensor *[]){target, index, src}));
  if (src->ndim > 0) NEED(lm_check_dtypes(f->op, "x", target, "src", src));
  NEED(lm_check_fits(lm_ops[f->op].name, target->dtype, src));
  NEED(lm_frame_line(f, &x, &dim));
  NEED(lm_frame_at_least_1d(f, &was));
  NEED(int64_with_dim(f, &index));
  if (index->storage == target->storage) {
    lm_tensor *own = NULL;
    NEED(lm_op_clone(&(lm_clone_args){.x = index}, &own));
    index = lm_frame_hold(f, own);
  }
  NEED(prepare_source(f, target, index, &src));
  NEED(check_covers(f->op, "x", x, index, (int)dim));
  NEED(check_covers(f->op, "src", src, index, -1));
  if (index->numel == 0) {
    if (given != target) NEED(lm_copy(given, target));
    return LM_OK;
  }
  if (!a->include_self && a->how == LM_FOLD_PROD) {
    NEED(lm_tensor_number(1, &one));
    lm_tensor *ones = lm_frame_hold(f, one);
    NEED(prepare_source(f, target, index, &ones));
    NEED(run_scatter(was, x, dim, index, ones, LM_FOLD_REPLACE));
  } else if (!a->include_self) { /* written elements must not start as their old values */
    NEED(run_scatter(was, x, dim, index, src, LM_FOLD_REPLACE));
  }
  return run_scatter(a->include_self ? was : x, x, dim, index, src, a->how);
}

lm_status lm_op_scatter_along(lm_op_id op, const lm_scatter_along_args *a, lm_tensor **out) {
  const bool on_cpu = LM_DEVICE_KIND(a->x->device) == LM_CPU;
  if (a->how == LM_FOLD_MEAN)
    return lm_fail_value("scatter_fold", "reduce", "one of 'sum', 'prod', 'amax', 'amin'", "'mean'");
  LM_FRAME(f, op);
  if (a->here) {
    f.result[0] = lm_retain(a->x);
  } else if (on_cpu) {
    NEED(lm_frame_result_like(&f, 0, a->x->dtype, a->x));
  } else {
    NEED(lm_op_clone(&(lm_clone_args){.x = a->x}, &f.result[0]));
  }
  NEED(scatter_into(&f, a, on_cpu ? a->x : f.result[0], f.result[0]));
  return lm_frame_end(&f, out);
}

/* ---- entries of a dim, selected by a 1-d index */

static lm_status entry_index(lm_frame *f, lm_tensor **index) {
  if ((*index)->ndim > 1)
    return lm_fail_value(lm_ops[f->op].name, "index", "1-d", lm_text("shape %s", lm_shape_of(*index)));
  NEED(lm_frame_index(f, "index", index));
  return lm_frame_at_least_1d(f, index);
}

lm_status lm_op_index_select(const lm_index_select_args *a, lm_tensor **out) {
  lm_index_select_args run = *a;
  LM_FRAME(f, LM_OP_index_select);
  NEED(lm_check_same_device(f.op, 2, (lm_tensor *[]){a->x, a->index}));
  NEED(lm_frame_line(&f, &run.x, &run.dim));
  NEED(entry_index(&f, &run.index));
  lm_ints size = lm_sizes_between(run.x->ndim, run.x->size, 0, 0);
  size.v[run.dim] = run.index->numel;
  NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, run.x->device, &run));
  if (a->x->ndim == 0 && run.index->numel == 1) f.result[0]->ndim = 0;
  return lm_frame_end(&f, out);
}

/* Adds src's entries to target's: in target's memory if `here`, via a copy if needed; else in a new tensor. */
static lm_status added_entries(lm_op_id op, lm_tensor *target, int64_t dim, lm_tensor *index, lm_tensor *added,
                               bool here, lm_tensor **out) {
  lm_index_add_args run = {.x = target, .dim = dim, .index = index, .src = added};
  lm_tensor *result = NULL;
  LM_FRAME(f, op);
  NEED(lm_check_same_device(op, 3, (lm_tensor *[]){target, index, added}));
  NEED(lm_check_dtypes(op, "x", target, "src", added));
  NEED(lm_frame_line(&f, &run.x, &run.dim));
  NEED(entry_index(&f, &run.index));
  NEED(lm_frame_at_least_1d(&f, &run.src));
  const lm_tensor *x = run.x;
  bool fits = run.src->ndim == x->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = run.src->size[d] == (d == run.dim ? run.index->numel : x->size[d]);
  if (!fits) {
    return lm_fail_shape(lm_ops[op].name, "src",
                         lm_text("%s with %lld in dim %lld, the length of index", lm_shape_of(target),
                                 (long long)run.index->numel, (long long)run.dim + 1),
                         lm_shape_of(added));
  }
  if (here && lm_is_contiguous(x) && run.src->storage != x->storage && run.index->storage != x->storage) {
    result = lm_retain(run.x);
  } else {
    NEED(lm_op_clone(&(lm_clone_args){.x = run.x, .memory_format = LM_CONTIGUOUS}, &result));
  }
  lm_frame_hold(&f, result);
  NEED(lm_frame_layout(&f, &run.src, LM_CONTIGUOUS));
  if (run.src->numel > 0) NEED(lm_dispatch(LM_OP_index_add, x->device, &run, &result));
  if (here && result != x) NEED(lm_copy(result, run.x));
  if (!here) result->ndim = target->ndim;
  f.result[0] = lm_retain(here ? target : result);
  return lm_frame_end(&f, out);
}

lm_status lm_op_index_add(const lm_index_add_args *a, lm_tensor **out) {
  return added_entries(LM_OP_index_add, a->x, a->dim, a->index, a->src, false, out);
}

lm_status lm_op_index_add_(const lm_index_add__args *a, lm_tensor **out) {
  return added_entries(LM_OP_index_add_, a->x, a->dim, a->index, a->src, true, out);
}
