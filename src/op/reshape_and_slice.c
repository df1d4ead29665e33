/* Creates views of x's storage: only sizes, strides and the first element change. */
#include "base/message.h"
#include "op/check.h"

/* Computes strides for a view of `size`. PyTorch's rule: new dims must stay within runs of x's dims with a single
 * stride (stride[d] == size[d + 1] * stride[d + 1]). Returns false if `size` cuts across such runs. */
static bool view_strides(const lm_tensor *x, int ndim, const int64_t *size, int64_t *stride) {
  if (x->numel == 0) {
    if (x->ndim == ndim) {
      bool same = true;
      for (int d = 0; d < ndim; d++) same = same && x->size[d] == size[d];
      for (int d = 0; same && d < ndim; d++) stride[d] = x->stride[d];
      if (same) return true;
    }
    lm_dense_strides(ndim, size, stride);
    return true;
  }
  int to = ndim - 1;
  int64_t run = 1, base = x->ndim ? x->stride[x->ndim - 1] : 1; /* elements in the run; stride of its last dim */
  for (int d = x->ndim - 1; d >= 0; d--) {
    run *= x->size[d];
    bool run_ends = d == 0 || (x->size[d - 1] != 1 && x->stride[d - 1] != run * base);
    if (!run_ends) continue;
    int64_t filled = 1;
    while (to >= 0 && (filled < run || size[to] == 1)) {
      stride[to] = filled * base;
      filled *= size[to--];
    }
    if (filled != run) return false;
    if (d > 0) {
      base = x->stride[d - 1];
      run = 1;
    }
  }
  for (; to >= 0; to--) stride[to] = 1; /* x is 0-d: only sizes of 1 are left */
  return true;
}

/* Replaces a -1, and checks that the sizes match x's number of elements. */
static lm_status infer_size(const lm_tensor *x, const lm_ints *asked, int64_t *size) {
  int unknown = -1;
  int64_t known = 1;
  for (int d = 0; d < asked->n; d++) {
    size[d] = asked->v[d];
    if (size[d] == -1) {
      if (unknown >= 0)
        return lm_fail_value("view", "size", "-1 in one dim at most", lm_shape_text(asked->n, asked->v));
      unknown = d;
    } else if (size[d] < 0) {
      return lm_fail_value("view", "size", "non-negative integers, or -1 once", lm_shape_text(asked->n, asked->v));
    } else if (__builtin_mul_overflow(known, size[d], &known)) {
      return lm_fail_value("view", "size", "less than 2^63 elements", lm_shape_text(asked->n, asked->v));
    }
  }
  if (unknown >= 0) {
    if (known == 0) {
      return lm_fail_value("view", "size", "without -1 beside a 0", lm_shape_text(asked->n, asked->v));
    }
    size[unknown] = x->numel / known;
    known *= size[unknown];
  }
  if (known != x->numel) {
    return lm_fail_value("view", "size", lm_text("%lld elements as x of shape %s", (long long)x->numel, lm_shape_of(x)),
                         lm_shape_text(asked->n, asked->v));
  }
  return LM_OK;
}

lm_status lm_op_view(const lm_view_args *a, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int ndim = a->size.n < 0 ? 0 : a->size.n;
  NEED(infer_size(a->x, &a->size, size));
  if (!view_strides(a->x, ndim, size, stride)) {
    return lm_fail(LM_E_SHAPE,
                   "view: x of shape %s and its strides cannot be viewed as %s without a copy; use :reshape",
                   lm_shape_of(a->x), lm_shape_text(ndim, size));
  }
  return lm_tensor_view(a->x, ndim, size, stride, 0, out);
}

lm_status lm_op_detach(const lm_detach_args *a, lm_tensor **out) {
  return lm_tensor_view(a->x, a->x->ndim, a->x->size, a->x->stride, 0, out);
}

/* ---- permutations of dims */

lm_status lm_op_permute(const lm_permute_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  bool used[LM_MAX_DIMS] = {false};
  if (a->dims.n != x->ndim && !(a->dims.n < 0 && x->ndim == 0)) {
    return lm_fail_int("permute", "the number of dims", lm_text("%d for x of shape %s", x->ndim, lm_shape_of(x)),
                       a->dims.n < 0 ? 0 : a->dims.n);
  }
  for (int i = 0; i < x->ndim; i++) {
    int d;
    NEED(lm_dim("permute", a->dims.v[i], x->ndim, &d));
    if (used[d]) return lm_fail_repeated_dim("permute", d + 1);
    used[d] = true;
    size[i] = x->size[d];
    stride[i] = x->stride[d];
  }
  return lm_tensor_view(a->x, x->ndim, size, stride, 0, out);
}

static lm_status swap_dims(lm_tensor *x, int d, int e, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) {
    int from = i == d ? e : i == e ? d : i;
    size[i] = x->size[from];
    stride[i] = x->stride[from];
  }
  return lm_tensor_view(x, x->ndim, size, stride, 0, out);
}

lm_status lm_op_transpose(const lm_transpose_args *a, lm_tensor **out) {
  int d, e;
  NEED(lm_dim("transpose", a->dim0, a->x->ndim, &d));
  NEED(lm_dim("transpose", a->dim1, a->x->ndim, &e));
  return swap_dims(a->x, d, e, out);
}

lm_status lm_op_t(const lm_t_args *a, lm_tensor **out) {
  if (a->x->ndim > 2) {
    return lm_remedy(lm_fail_value("t", "x", "at most 2-d", lm_text("shape %s", lm_shape_of(a->x))),
                     "use :transpose or :permute");
  }
  return swap_dims(a->x, 0, a->x->ndim == 2, out);
}

/* ---- parts of a dim; entries count from 1, negative from the end */

static lm_status check_has_dims(lm_op_id op, const lm_tensor *x) {
  if (x->ndim > 0) return LM_OK;
  return lm_fail_value(lm_ops[op].name, "x", "at least 1-d", "a 0-d tensor");
}

lm_status lm_op_select(const lm_select_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int dim;
  NEED(check_has_dims(LM_OP_select, x));
  NEED(lm_dim("select", a->dim, x->ndim, &dim));
  int64_t n = x->size[dim], index = a->index < 0 ? a->index + n : a->index - 1;
  if (a->index == 0 || index < 0 || index >= n) { return lm_fail_index("select", a->index, dim + 1, n); }
  for (int i = 0, to = 0; i < x->ndim; i++) {
    if (i == dim) continue;
    size[to] = x->size[i];
    stride[to++] = x->stride[i];
  }
  return lm_tensor_view(a->x, x->ndim - 1, size, stride, index * x->stride[dim], out);
}

/* Computes the length and first entry (0-based) of slice's range in dim `dim` of size n. */
static lm_status slice_range(lm_op_id op, int dim, int64_t n, int64_t first, int64_t last, int64_t step, int64_t *start,
                             int64_t *length) {
  const char *name = lm_ops[op].name;
  if (step < 1) return lm_fail_int(name, "step", "at least 1", step);
  if (first == 0) return lm_fail_index(name, first, dim + 1, n);
  int64_t from = first < 0 ? first + n + 1 : first, to = last < 0 ? last + n + 1 : last;
  if (from < 1 || from > n + 1 || to < 0 || to > n) { /* first = n + 1 with last = n is an empty slice */
    return lm_fail_index(name, from < 1 || from > n + 1 ? first : last, dim + 1, n);
  }
  first = from, last = to;
  *start = first - 1;
  *length = last < first ? 0 : (last - first) / step + 1;
  return LM_OK;
}

static lm_status view_part(lm_tensor *x, int dim, int64_t start, int64_t length, int64_t step, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) {
    size[i] = x->size[i];
    stride[i] = x->stride[i];
  }
  size[dim] = length;
  stride[dim] *= length > 1 ? step : 1;
  return lm_tensor_view(x, x->ndim, size, stride, length ? start * x->stride[dim] : 0, out);
}

lm_status lm_op_slice(const lm_slice_args *a, lm_tensor **out) {
  int dim;
  int64_t start, length;
  NEED(check_has_dims(LM_OP_slice, a->x));
  NEED(lm_dim("slice", a->dim, a->x->ndim, &dim));
  NEED(slice_range(LM_OP_slice, dim, a->x->size[dim], a->first, a->last, a->step, &start, &length));
  return view_part(a->x, dim, start, length, a->step, out);
}

lm_status lm_op_narrow(const lm_narrow_args *a, lm_tensor **out) {
  int dim;
  NEED(check_has_dims(LM_OP_narrow, a->x));
  NEED(lm_dim("narrow", a->dim, a->x->ndim, &dim));
  int64_t n = a->x->size[dim], start = a->start < 0 ? a->start + n : a->start - 1;
  if (a->length < 0) return lm_fail_int("narrow", "length", "at least 0", a->length);
  if (a->start == 0 || start < 0 || start > n) return lm_fail_index("narrow", a->start, dim + 1, n);
  if (a->length > n - start) {
    return lm_fail_int("narrow", "length",
                       lm_text("at most %lld from start %lld on in dim %d of %s", (long long)(n - start),
                               (long long)a->start, dim + 1, lm_shape_of(a->x)),
                       a->length);
  }
  return view_part(a->x, dim, start, a->length, 1, out);
}

/* Runs slice's gradient: zeros of x's size with grad at the positions that slice read. */
lm_status lm_op_slice_backward(const lm_slice_backward_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL, *part = NULL, *zeroed = NULL;
  int dim;
  int64_t start, length, n;
  if (a->size.n != a->grad->ndim) {
    return lm_fail_shape("slice_backward", "grad",
                         lm_text("a slice of %s", lm_shape_text(a->size.n < 0 ? 0 : a->size.n, a->size.v)),
                         lm_shape_of(a->grad));
  }
  NEED(check_has_dims(LM_OP_slice_backward, a->grad));
  NEED(lm_dim("slice_backward", a->dim, a->size.n, &dim));
  n = a->grad->size[dim];
  NEED(slice_range(LM_OP_slice_backward, dim, a->size.v[dim], a->first, -1, a->step, &start, &length));
  for (int i = 0; i < a->size.n; i++) {
    if (i == dim ? length < n : a->size.v[i] != a->grad->size[i]) {
      return lm_fail_shape("slice_backward", "grad", lm_text("a slice of %s", lm_shape_text(a->size.n, a->size.v)),
                           lm_shape_of(a->grad));
    }
  }
  NEED(lm_tensor_empty(a->grad->dtype, a->grad->device, a->size.n, a->size.v, LM_CONTIGUOUS, &x));
  NEED(view_part(x, dim, start, n, a->step, &part));
  NEED(lm_op_zero_(&(lm_zero__args){.x = x}, &zeroed));
  NEED(lm_copy(a->grad, part));
  *out = lm_tensor_take(&x);
  return LM_OK;
}

/* ---- dims of size 1 */

lm_status lm_op_expand(const lm_expand_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int ndim = a->size.n < 0 ? 0 : a->size.n, more = ndim - x->ndim;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  if (more < 0) {
    return lm_fail_value("expand", "the number of sizes",
                         lm_text("at least %d for x of shape %s", x->ndim, lm_shape_of(x)),
                         lm_shape_text(ndim, a->size.v));
  }
  for (int d = 0; d < ndim; d++) {
    int64_t asked = a->size.v[d], from = d < more ? 1 : x->size[d - more];
    if (asked < -1 || (asked == -1 && d < more)) {
      return lm_fail_int("expand", lm_text("size of dim %d", d + 1),
                         d < more ? "at least 0 for a new dim" : "at least 0, or -1 to keep it", asked);
    }
    if (asked == -1) asked = from;
    if (from != 1 && from != asked) {
      return lm_remedy(lm_fail_broadcast("expand", "x", lm_shape_of(x), lm_shape_text(ndim, a->size.v)),
                       "the size of dim %d must be %lld", d + 1, (long long)from);
    }
    size[d] = asked;
    stride[d] = d < more || from != asked ? 0 : x->stride[d - more];
  }
  return lm_tensor_view(a->x, ndim, size, stride, 0, out);
}

lm_status lm_op_squeeze(const lm_squeeze_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  lm_ints dims;
  bool listed[LM_MAX_DIMS] = {false};
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int ndim = 0;
  NEED(lm_dims(LM_OP_squeeze, &a->dim, x->ndim, &dims));
  if (a->dim.n == 0) dims.n = 0; /* an empty list selects no dims, a missing one all */
  for (int i = 0; i < dims.n; i++) listed[dims.v[i]] = true;
  for (int d = 0; d < x->ndim; d++) {
    if (listed[d] && x->size[d] == 1) continue;
    size[ndim] = x->size[d];
    stride[ndim++] = x->stride[d];
  }
  return lm_tensor_view(a->x, ndim, size, stride, 0, out);
}

lm_status lm_op_unsqueeze(const lm_unsqueeze_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int dim;
  if (x->ndim == LM_MAX_DIMS) {
    return lm_fail_int("unsqueeze", "the number of dims of x", lm_text("less than %d", LM_MAX_DIMS), x->ndim);
  }
  NEED(lm_dim("unsqueeze", a->dim, x->ndim + 1, &dim));
  for (int d = 0; d <= x->ndim; d++) {
    int from = d - (d > dim);
    /* PyTorch's stride for a size of 1: a contiguous tensor's */
    size[d] = d == dim ? 1 : x->size[from];
    stride[d] = d != dim ? x->stride[from] : dim < x->ndim ? x->size[dim] * x->stride[dim] : 1;
  }
  return lm_tensor_view(a->x, x->ndim + 1, size, stride, 0, out);
}
