/* Makes views by strides: diagonal, unfold, as_strided. Their gradient uses the view's
 * geometry within x, as for a view whose base was written (view_and_inplace.c). */
#include <string.h>

#include "autograd/composite.h"
#include "autograd/record_graph.h"
#include "base/message.h"
#include "op/check.h"
#include "op_entries.h"

/* Computes a view's sizes, strides and offset; *geometry has x's sizes and strides as its base. */
typedef lm_status (*geometry_fn)(const void *args, lm_view_geometry *geometry);

/* Returns the view of x that `fill` computes; its gradient uses the same view of a contiguous x. */
static lm_status make_strided_view(lm_tensor *x, geometry_fn fill, const void *args, lm_tensor **out) {
  lm_view_geometry memory = {.base_ndim = x->ndim}, geometry;
  memcpy(memory.base_size, x->size, sizeof x->size);
  geometry = memory;
  memcpy(memory.base_stride, x->stride, sizeof x->stride);
  lm_dense_strides(x->ndim, x->size, geometry.base_stride);
  NEED(fill(args, &memory));
  NEED(fill(args, &geometry));
  return lm_view_at(x, &memory, &geometry, out);
}

/* ---- diagonal */

static lm_status diagonal_geometry(const void *args, lm_view_geometry *p) {
  const lm_diagonal_args *a = args;
  int d, e;
  NEED(lm_dim("diagonal", a->dim1, p->base_ndim, &d));
  NEED(lm_dim("diagonal", a->dim2, p->base_ndim, &e));
  if (d == e) return lm_fail(LM_E_ARG, "diagonal: dim1 and dim2 must differ, got dim %d for both", d + 1);
  /* entries before the diagonal's first in dim e, and in dim d */
  int64_t across = a->offset > 0 ? a->offset : 0;
  int64_t down = a->offset == INT64_MIN ? INT64_MAX : a->offset < 0 ? -a->offset : 0;
  int64_t wide = p->base_size[e] - across, high = p->base_size[d] - down, n = wide < high ? wide : high;
  for (int i = 0; i < p->base_ndim; i++) {
    if (i == d || i == e) continue;
    p->size[p->ndim] = p->base_size[i];
    p->stride[p->ndim++] = p->base_stride[i];
  }
  p->size[p->ndim] = n > 0 ? n : 0;
  p->stride[p->ndim++] = p->base_stride[d] + p->base_stride[e];
  p->offset = n > 0 ? across * p->base_stride[e] + down * p->base_stride[d] : 0;
  return LM_OK;
}

lm_status lm_composite_diagonal(const lm_diagonal_args *a, lm_tensor **out) {
  if (a->x->ndim < 2) { return lm_fail_value("diagonal", "x", "at least 2-d", lm_text("shape %s", lm_shape_of(a->x))); }
  return make_strided_view(a->x, diagonal_geometry, a, out);
}

/* ---- unfold */

static lm_status unfold_geometry(const void *args, lm_view_geometry *p) {
  const lm_unfold_args *a = args;
  int dim;
  NEED(lm_dim("unfold", a->dim, p->base_ndim, &dim));
  int64_t n = p->base_ndim > 0 ? p->base_size[dim] : 1, stride = p->base_ndim > 0 ? p->base_stride[dim] : 1;
  if (a->step < 1) return lm_fail_int("unfold", "step", "at least 1", a->step);
  if (a->size < 0 || a->size > n) {
    return lm_fail_int(
        "unfold", "size",
        lm_text("from 0 to %lld in dim %d of %s", (long long)n, dim + 1, lm_shape_text(p->base_ndim, p->base_size)),
        a->size);
  }
  p->ndim = p->base_ndim;
  memcpy(p->size, p->base_size, sizeof p->size);
  memcpy(p->stride, p->base_stride, sizeof p->stride);
  if (p->ndim > 0) {
    p->size[dim] = (n - a->size) / a->step + 1;
    p->stride[dim] = p->size[dim] > 1 ? stride * a->step : stride;
  }
  p->size[p->ndim] = a->size;
  p->stride[p->ndim++] = stride;
  return LM_OK;
}

lm_status lm_composite_unfold(const lm_unfold_args *a, lm_tensor **out) {
  if (a->x->ndim == LM_MAX_DIMS) {
    return lm_fail_int("unfold", "the number of dims of x", lm_text("less than %d", LM_MAX_DIMS), a->x->ndim);
  }
  return make_strided_view(a->x, unfold_geometry, a, out);
}

/* ---- as_strided */

lm_status lm_composite_as_strided(const lm_as_strided_args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  lm_view_geometry p = {.ndim = a->size.n < 0 ? 0 : a->size.n, .base_ndim = x->ndim};
  int64_t begin = (x->data - (char *)x->storage->data) / (int64_t)lm_dtype_size(x->dtype);
  if (p.ndim != (a->stride.n < 0 ? 0 : a->stride.n)) {
    return lm_fail_int("as_strided", "the number of strides", lm_text("%d as that of sizes", p.ndim),
                       a->stride.n < 0 ? 0 : a->stride.n);
  }
  if (a->storage_offset != LM_NO_INT && a->storage_offset < 0) {
    return lm_fail_int("as_strided", "storage_offset", "at least 0", a->storage_offset);
  }
  if (lm_requires_grad(x) && lm_grad_enabled() && lm_overlaps_itself(x)) {
    return lm_fail(LM_E_ARG,
                   "as_strided: cannot compute gradients for an expanded x of shape %s, whose elements share memory; "
                   ":clone() it first",
                   lm_shape_of(x));
  }
  p.offset = a->storage_offset == LM_NO_INT ? 0 : a->storage_offset - begin;
  memcpy(p.size, a->size.v, sizeof p.size);
  memcpy(p.stride, a->stride.v, sizeof p.stride);
  memcpy(p.base_size, x->size, sizeof p.base_size);
  memcpy(p.base_stride, x->stride, sizeof p.base_stride);
  return lm_view_at(x, &p, &p, out);
}
