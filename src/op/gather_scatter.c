/* Picking or adding along one dim. Indices count from 1; slots check them all before their first write.
 *
 * What slots get beyond op/backend.h: index tensors are int64, contiguous except expanded dims, which gather's and
 * scatter's may have; x of a 0-d call is [1]; index_add's out holds x already, and its out and src are contiguous.
 * scatter_fold's out does too, or it is the CPU's, and x is another tensor. */
#include <string.h>

#include "base/message.h"
#include "op/index_checks.h"
#include "op/input_layout.h"

/* t with one dim at least. */
static lm_status with_dim(lm_tensor *t, lm_tensor **out) {
  if (t->ndim == 0) return lm_op_unsqueeze(&(lm_unsqueeze_args){.x = t, .dim = 0}, out);
  *out = lm_retain(t);
  return LM_OK;
}

/* Dims that are expanded stay so, without memory of their own. */
static lm_status int64_with_dim(lm_op_id op, lm_tensor *index, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *stored = NULL, *converted = NULL, *wide = NULL;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  bool expanded = false;
  for (int d = 0; d < index->ndim; d++) {
    bool shared = index->stride[d] == 0 && index->size[d] > 1;
    expanded |= shared;
    size[d] = shared ? 1 : index->size[d];
  }
  if (expanded) TRY(lm_tensor_view(index, index->ndim, size, index->stride, 0, &stored));
  TRY(lm_index_int64(op, "index", expanded ? stored : index, &converted));
  if (expanded) {
    for (int d = 0; d < index->ndim; d++) stride[d] = size[d] == index->size[d] ? converted->stride[d] : 0;
    TRY(lm_tensor_view(converted, index->ndim, index->size, stride, 0, &wide));
  }
  TRY(with_dim(expanded ? wide : converted, out));
done:
  lm_release(stored);
  lm_release(converted);
  lm_release(wide);
  return status;
}

static lm_status check_same_dtype(lm_op_id op, const lm_tensor *x, const lm_tensor *src) {
  if (x->dtype == src->dtype) return LM_OK;
  return lm_fail_dtypes(lm_ops[op].name, "x", lm_dtype_name(x->dtype), "src", lm_dtype_name(src->dtype));
}

/* ---- gather, scatter and its kin: an index for every element */

/* index has t's ndim and is no larger than t, in dim (if not negative) any size. */
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
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *result = NULL;
  int dim;
  TRY(lm_check_same_device(LM_OP_gather, 2, (lm_tensor *[]){a->x, a->index}));
  TRY(lm_dim("gather", a->dim, a->x->ndim, &dim));
  TRY(with_dim(a->x, &x));
  TRY(int64_with_dim(LM_OP_gather, a->index, &index));
  TRY(check_covers(LM_OP_gather, "x", x, index, dim));
  TRY(lm_tensor_empty(x->dtype, x->device, index->ndim, index->size, LM_CONTIGUOUS, &result));
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

/* What is written, apart from the target's memory: a number or a 0-d tensor for all of index. */
static lm_status source_of(const lm_tensor *target, const lm_tensor *index, lm_tensor *given, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *own = NULL;
  if (given->ndim == 0 && index->ndim > 0) {
    lm_expand_args wide = {.size = {.n = index->ndim}};
    memcpy(wide.size.v, index->size, sizeof index->size);
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = given, .dtype = target->dtype, .device = target->device}, &own));
    wide.x = own;
    TRY(lm_op_expand(&wide, out));
  } else {
    if (given->number || given->storage == target->storage) {
      TRY(lm_op_to_copy(&(lm_to_copy_args){.x = given, .dtype = target->dtype, .device = target->device}, &own));
    }
    TRY(with_dim(own ? own : given, out));
  }
done:
  lm_release(own);
  return status;
}

typedef struct scattering {
  lm_op_id op; /* that the caller asked for */
  int64_t dim;
  lm_tensor *index, *src;
  int how;
  bool without_self; /* what was there before does not count */
} scattering;

/* was: what x is to hold before; x itself, or, on the CPU, another of its sizes. */
static lm_status fold(lm_tensor *was, lm_tensor *x, int64_t dim, lm_tensor *index, lm_tensor *src, int how) {
  lm_scatter_fold_args args = {.x = was, .dim = dim, .index = index, .src = src, .how = how};
  return lm_dispatch(LM_OP_scatter_fold, x->device, &args, &x);
}

/* Into the target's memory, which is that of `given`, or a result's to be. */
static lm_status scatter_into(const scattering *s, lm_tensor *given, lm_tensor *target) {
  lm_status status = LM_OK;
  lm_tensor *was = NULL, *x = NULL, *index = NULL, *src = NULL, *one = NULL, *ones = NULL;
  int dim;
  TRY(lm_check_same_device(s->op, 3, (lm_tensor *[]){target, s->index, s->src}));
  if (s->src->ndim > 0) TRY(check_same_dtype(s->op, target, s->src));
  TRY(lm_check_fits(lm_ops[s->op].name, target->dtype, s->src));
  TRY(lm_dim(lm_ops[s->op].name, s->dim, target->ndim, &dim));
  TRY(with_dim(target, &x));
  TRY(with_dim(given, &was));
  TRY(int64_with_dim(s->op, s->index, &index));
  if (index->storage == target->storage) {
    lm_tensor *fresh = NULL;
    TRY(lm_op_clone(&(lm_clone_args){.x = index}, &fresh));
    lm_release(index);
    index = fresh;
  }
  TRY(source_of(target, index, s->src, &src));
  TRY(check_covers(s->op, "x", x, index, dim));
  TRY(check_covers(s->op, "src", src, index, -1));
  if (index->numel == 0) {
    if (given != target) TRY(lm_copy(given, target));
    goto done;
  }
  if (s->without_self && s->how == LM_FOLD_PROD) {
    TRY(lm_tensor_number(1, &one));
    TRY(source_of(target, index, one, &ones));
    TRY(fold(was, x, dim, index, ones, LM_FOLD_REPLACE));
  } else if (s->without_self) { /* one of those that are to be compared */
    TRY(fold(was, x, dim, index, src, LM_FOLD_REPLACE));
  }
  TRY(fold(s->without_self ? x : was, x, dim, index, src, s->how));
done:
  lm_release(was);
  lm_release(x);
  lm_release(index);
  lm_release(src);
  lm_release(one);
  lm_release(ones);
  return status;
}

static lm_status scatter_here(scattering s, lm_tensor *x, lm_tensor **out) {
  lm_status status = scatter_into(&s, x, x);
  if (status == LM_OK) *out = lm_retain(x);
  return status;
}

static lm_status scattered(scattering s, lm_tensor *x, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL;
  if (LM_DEVICE_KIND(x->device) == LM_CPU) {
    TRY(lm_tensor_empty_like(x, x->dtype, x->device, &result));
    TRY(scatter_into(&s, x, result));
  } else {
    TRY(lm_op_clone(&(lm_clone_args){.x = x}, &result));
    TRY(scatter_into(&s, result, result));
  }
  *out = result;
  result = NULL;
done:
  lm_release(result);
  return status;
}

lm_status lm_op_scatter_add_(const lm_scatter_add__args *a, lm_tensor **out) {
  return scatter_here((scattering){LM_OP_scatter_add_, a->dim, a->index, a->src, LM_FOLD_SUM, false}, a->x, out);
}

lm_status lm_op_scatter_add(const lm_scatter_add_args *a, lm_tensor **out) {
  return scattered((scattering){LM_OP_scatter_add, a->dim, a->index, a->src, LM_FOLD_SUM, false}, a->x, out);
}

lm_status lm_op_scatter_(const lm_scatter__args *a, lm_tensor **out) {
  return scatter_here((scattering){LM_OP_scatter_, a->dim, a->index, a->src, LM_FOLD_REPLACE, false}, a->x, out);
}

lm_status lm_op_scatter(const lm_scatter_args *a, lm_tensor **out) {
  return scattered((scattering){LM_OP_scatter, a->dim, a->index, a->src, LM_FOLD_REPLACE, false}, a->x, out);
}

lm_status lm_op_scatter_fold(const lm_scatter_fold_args *a, lm_tensor **out) {
  if (a->how == LM_FOLD_MEAN)
    return lm_fail_value("scatter_fold", "reduce", "one of 'sum', 'prod', 'amax', 'amin'", "'mean'");
  return scattered((scattering){LM_OP_scatter_fold, a->dim, a->index, a->src, a->how, !a->include_self}, a->x, out);
}

/* ---- whole entries of a dim, named by a 1-d index */

static lm_status entry_index(lm_op_id op, lm_tensor *index, lm_tensor **out) {
  lm_tensor *converted = NULL;
  if (index->ndim > 1) {
    return lm_fail_value(lm_ops[op].name, "index", "1-d", lm_text("shape %s", lm_shape_of(index)));
  }
  lm_status status = lm_index_int64(op, "index", index, &converted);
  if (status == LM_OK) status = with_dim(converted, out);
  lm_release(converted);
  return status;
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
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, size, LM_CONTIGUOUS, &result));
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

/* target's entries plus src's, in the target's own memory where that is in order, else in a new tensor. */
static lm_status added_entries(lm_op_id op, lm_tensor *target, int64_t asked, lm_tensor *entries, lm_tensor *added,
                               bool here, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *index = NULL, *given = NULL, *src = NULL, *result = NULL;
  int dim;
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){target, entries, added}));
  TRY(check_same_dtype(op, target, added));
  TRY(lm_dim(lm_ops[op].name, asked, target->ndim, &dim));
  TRY(entry_index(op, entries, &index));
  TRY(with_dim(target, &x));
  TRY(with_dim(added, &given));
  bool fits = given->ndim == x->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = given->size[d] == (d == dim ? index->numel : x->size[d]);
  if (!fits) {
    status = lm_fail_shape(
        lm_ops[op].name, "src",
        lm_text("%s with %lld in dim %d, the length of index", lm_shape_of(target), (long long)index->numel, dim + 1),
        lm_shape_of(added));
    goto done;
  }
  if (here && lm_is_contiguous(x) && given->storage != x->storage && index->storage != x->storage) {
    result = lm_retain(x);
  } else {
    TRY(lm_op_clone(&(lm_clone_args){.x = x, .memory_format = LM_CONTIGUOUS}, &result));
  }
  TRY(lm_to_layout(given, LM_CONTIGUOUS, &src));
  if (src->numel > 0) {
    lm_index_add_args args = {.x = x, .dim = dim, .index = index, .src = src};
    TRY(lm_dispatch(LM_OP_index_add, x->device, &args, &result));
  }
  if (here && result != x) TRY(lm_copy(result, x));
  if (here) {
    *out = lm_retain(target);
  } else {
    result->ndim = target->ndim;
    *out = lm_retain(result);
  }
done:
  lm_release(x);
  lm_release(index);
  lm_release(given);
  lm_release(src);
  lm_release(result);
  return status;
}

lm_status lm_op_index_add(const lm_index_add_args *a, lm_tensor **out) {
  return added_entries(LM_OP_index_add, a->x, a->dim, a->index, a->src, false, out);
}

lm_status lm_op_index_add_(const lm_index_add__args *a, lm_tensor **out) {
  return added_entries(LM_OP_index_add_, a->x, a->dim, a->index, a->src, true, out);
}
