#include "autograd/formulas.h"

#include <math.h>
#include <string.h>

#include "autograd/gradient_rules.h"
#include "backend/known/setting.h"
#include "op/nn/attention.h"
#include "op/operand_checks.h"
#include "op_entries.h"

static lm_ints size_of(const lm_tensor *t) { return lm_f_size_of(t); }

static int normal_dim(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + ndim : dim); }

/* Returns size with 1 at the reduced dims; at all dims if `dims` is empty. */
static lm_ints keepdim_size(lm_ints dims, lm_ints size) {
  lm_ints with_ones = size;
  for (int d = 0; d < size.n && dims.n <= 0; d++) with_ones.v[d] = 1;
  for (int i = 0; i < dims.n && size.n > 0; i++) with_ones.v[normal_dim(dims.v[i], size.n)] = 1;
  return with_ones;
}

lm_tensor *lm_f_with_reduced_dims(lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size) {
  if (!g || keepdim || g->ndim == size.n) return g;
  return lm_e_reshape(e, g, keepdim_size(dims, size));
}

lm_tensor *lm_f_scaled(lm_expr *e, lm_tensor *g, double factor) {
  if (!g || factor == 1) return g;
  return factor == -1 ? lm_e_neg(e, g) : lm_e_mul(e, g, lm_e_number(e, factor));
}

lm_tensor *lm_f_zeros_of(lm_expr *e, lm_tensor *g, lm_ints size) {
  return g ? lm_e_zeros(e, size, g->dtype, g->device) : NULL;
}

lm_tensor *lm_f_in_dtype_of(lm_expr *e, lm_tensor *t, const lm_tensor *like) {
  if (!t || !like || t->dtype == like->dtype) return t;
  return lm_e_to_copy(e, t, like->dtype, LM_NO_DEVICE, LM_PRESERVE, false);
}

static bool is_kept(const lm_tensor *t) {
  return lm_autocast_get().keeps >> LM_DEVICE_KIND(t->device) & 1 && !t->number && lm_dtype_is_float(t->dtype) &&
         t->dtype != LM_F64;
}

lm_tensor *lm_f_widened(lm_expr *e, lm_tensor *t) {
  return lm_f_is_half(t) ? lm_e_to_copy(e, t, LM_F32, LM_NO_DEVICE, LM_PRESERVE, false) : t;
}

lm_tensor *lm_f_in_kept_dtype(lm_expr *e, lm_tensor *t) { return t && is_kept(t) ? lm_f_widened(e, t) : t; }

lm_tensor *lm_f_in_result_dtype_of(lm_expr *e, lm_tensor *t, const lm_tensor *x) {
  return x && is_kept(x) ? t : lm_f_in_dtype_of(e, t, x);
}

lm_tensor *lm_f_class_rows(lm_expr *e, lm_tensor *x) {
  if (!x || x->ndim < 2) return lm_e_unsqueeze(e, x, 0);
  lm_ints order = lm_f_all_but(1, x->ndim);
  order.v[order.n++] = 1;
  return x->ndim == 2 ? x : lm_f_rows(e, lm_e_permute(e, x, order));
}

bool lm_f_has_class_rows(const lm_tensor *x, const lm_tensor *target) {
  bool rows = lm_dtype_is_float(x->dtype) && lm_dtype_is_int(target->dtype) && target->ndim == x->ndim - 1;
  if (!rows || x->ndim <= 2) return rows;
  for (int d = 0; d < target->ndim; d++) {
    int at = d ? d + 1 : 0, next = d + 2; /* x's dims except the class dim */
    rows = rows && x->size[at] == target->size[d] &&
           (next >= x->ndim || x->size[at] <= 1 || x->stride[at] == x->stride[next] * x->size[next]);
  }
  return rows && x->stride[1] == 1;
}

lm_tensor *lm_f_zero_for(lm_expr *e, lm_tensor *g, lm_ints size) {
  return g ? lm_e_expand(e, lm_e_zeros(e, (lm_ints){0}, g->dtype, g->device), size) : NULL;
}

lm_tensor *lm_f_expand_to(lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size) {
  if (!g) return NULL;
  if (g->ndim != 0) g = lm_f_with_reduced_dims(e, g, dims, keepdim, size);
  return lm_e_expand(e, g, size);
}

double lm_f_count(lm_ints dims, lm_ints size) {
  double n = 1;
  lm_ints with_ones = keepdim_size(dims, size);
  for (int d = 0; d < size.n; d++) {
    if (with_ones.v[d] != size.v[d]) n *= (double)size.v[d];
  }
  return n;
}

lm_tensor *lm_f_position_grad(lm_expr *e, lm_tensor *g, lm_tensor *index, int64_t dim, bool keepdim, lm_ints size) {
  if (!g) return NULL;
  if (size.n == 0) return lm_e_reshape(e, g, size);
  if (dim == LM_NO_DIM) dim = -1;
  if (!keepdim) {
    g = lm_e_unsqueeze(e, g, normal_dim(dim, size.n));
    index = lm_e_unsqueeze(e, index, normal_dim(dim, size.n));
  }
  return lm_e_scatter_add(e, lm_f_zero_for(e, g, size), dim, index, g);
}

lm_tensor *lm_f_embedding_bag_of(lm_expr *e, lm_tensor *offsets, lm_tensor *index) {
  lm_tensor *positions = lm_e_arange(e, 1, (double)index->numel + 1, 1, LM_I64, index->device);
  return lm_e_sub(e, lm_e_searchsorted(e, offsets, positions, true, false, LM_SIDE_NONE, NULL), lm_e_number(e, 1), 1);
}

bool lm_f_has_masks(lm_list indices) {
  for (int i = 0; i < indices.n; i++) {
    if (indices.v[i] && indices.v[i]->dtype == LM_BOOL) return true;
  }
  return false;
}

static lm_status check_mask(const lm_tensor *x, const lm_tensor *mask, int dim) {
  bool fits = dim + mask->ndim <= x->ndim;
  for (int d = 0; fits && d < mask->ndim; d++) fits = mask->size[d] == x->size[dim + d];
  if (mask->ndim == 0) return lm_fail(LM_E_SHAPE, "a mask must be at least 1-d, got a 0-d tensor");
  if (fits) return LM_OK;
  return lm_fail(LM_E_SHAPE, "a mask must match x of shape %s from dim %d on, got shape %s", lm_shape_of(x), dim + 1,
                 lm_shape_of(mask));
}

lm_list lm_f_without_masks(lm_expr *e, lm_tensor *x, lm_list indices) {
  static _Thread_local lm_tensor *positions[LM_MAX_DIMS];
  int dim = 0;
  for (int i = 0; i < indices.n && e->status == LM_OK; i++) {
    lm_tensor *index = indices.v[i];
    if (!index || index->dtype != LM_BOOL) {
      if (dim < LM_MAX_DIMS) positions[dim] = index;
      dim++;
    } else if (lm_e_ok(e, check_mask(x, index, dim))) {
      lm_tensor *rows = lm_e_nonzero(e, index, false);
      for (int d = 0; d < index->ndim; d++) positions[dim++] = lm_e_select(e, rows, 1, d + 1);
    }
  }
  if (dim > x->ndim) {
    lm_e_ok(e, lm_fail(LM_E_SHAPE,
                       "indices for %d dims must be at most %d for x of shape %s; a mask counts all of its dims", dim,
                       x->ndim, lm_shape_of(x)));
  }
  return (lm_list){e->status == LM_OK ? dim : 0, positions};
}

lm_tensor *lm_f_scatter_counts(lm_expr *e, lm_tensor *x, int64_t dim, lm_tensor *index, bool include_self) {
  if (!x || !index) return NULL;
  lm_ints size = size_of(x);
  int64_t of_dim = x->ndim == 0 ? 0 : normal_dim(dim, x->ndim);
  for (int d = 0; d < index->ndim && index->ndim == x->ndim; d++) {
    bool shared = index->stride[d] == 0 && index->size[d] > 1 && index->size[d] == size.v[d] && d != of_dim;
    if (!shared) continue;
    index = lm_e_narrow(e, index, d, 1, 1);
    if (!index) return NULL;
    size.v[d] = 1;
  }
  lm_tensor *own = include_self ? lm_e_ones(e, size, x->dtype, x->device) : lm_e_zeros(e, size, x->dtype, x->device);
  lm_tensor *ones = lm_e_expand(e, lm_e_ones(e, (lm_ints){0}, x->dtype, x->device), size_of(index));
  lm_tensor *n = lm_e_scatter_add(e, own, dim, index, ones);
  return include_self || !n ? n : lm_e_masked_fill(e, n, lm_e_eq(e, n, lm_e_number(e, 0)), lm_e_number(e, 1));
}

lm_tensor *lm_f_shifted(lm_expr *e, lm_tensor *t, int64_t dim, bool reverse, double edge) {
  if (!t) return NULL;
  lm_ints size = size_of(t), one = size;
  int64_t d = normal_dim(dim, t->ndim), n = t->ndim == 0 ? 1 : size.v[d];
  if (t->ndim > 0) one.v[d] = n < 1 ? n : 1;
  lm_tensor *border = lm_e_full(e, one, lm_e_number(e, edge), t->dtype, t->device);
  if (n <= 1) return border;
  lm_tensor *rest = lm_e_narrow(e, t, d, reverse ? 2 : 1, n - 1);
  lm_tensor *parts[] = {reverse ? rest : border, reverse ? border : rest};
  return e->status == LM_OK ? lm_e_cat(e, (lm_list){2, parts}, d) : NULL;
}

lm_tensor *lm_f_result(lm_expr *e, lm_tensor *t, int64_t n) { return t ? e->last[n - 1] : NULL; }

lm_tensor *lm_f_plus(lm_expr *e, lm_tensor *a, lm_tensor *b) { return !a ? b : !b ? a : lm_e_add(e, a, b, 1); }

lm_tensor *lm_f_minus(lm_expr *e, lm_tensor *a, lm_tensor *b) {
  if (!b) return a;
  return a ? lm_e_sub(e, a, b, 1) : lm_e_neg(e, b);
}

lm_tensor *lm_f_product_of_others(lm_expr *e, lm_tensor *t) {
  lm_tensor *before = lm_f_shifted(e, lm_e_cumprod(e, t, -1, false, LM_NO_DTYPE), -1, false, 1);
  lm_tensor *behind = lm_f_shifted(e, lm_e_cumprod(e, t, -1, true, LM_NO_DTYPE), -1, true, 1);
  return lm_e_mul(e, before, behind);
}

/* Divides the product by each element if none is 0; else multiplies the products of elements before and after it. */
lm_tensor *lm_f_product_grad(lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *y, lm_ints dims, bool keepdim) {
  if (!g) return NULL;
  lm_ints size = size_of(x), lines = {0}, permuted = {0}, with_ones = keepdim_size(dims, size);
  lm_tensor *all = lm_f_with_reduced_dims(e, g, dims, keepdim, size);
  if (lm_f_least_of(lm_e_abs(e, x)) > 0) {
    return lm_e_div(e, lm_e_mul(e, all, lm_f_with_reduced_dims(e, y, dims, keepdim, size)), x, LM_EXACT);
  }
  lm_ints order = {0};
  bool reduced[LM_MAX_DIMS] = {false};
  int64_t n = 1;
  for (int i = 0; i < dims.n && size.n > 0; i++) reduced[normal_dim(dims.v[i], size.n)] = true;
  for (int pass = 0; pass < 2; pass++) { /* kept dims, then reduced dims */
    for (int d = 0; d < size.n; d++) {
      if ((dims.n <= 0 || reduced[d]) != (pass == 1)) continue;
      order.v[order.n++] = d;
      permuted.v[permuted.n++] = size.v[d];
      if (pass == 0) lines.v[lines.n++] = with_ones.v[d];
      if (pass == 1) n *= size.v[d];
    }
  }
  lines.v[lines.n++] = n;
  lm_tensor *line = lm_e_reshape(e, lm_e_permute(e, x, order), lines);
  lm_tensor *others = lm_e_reshape(e, lm_f_product_of_others(e, line), permuted);
  return lm_e_mul(e, all, lm_f_unpermuted(e, others, order));
}

lm_tensor *lm_f_mm_in_layout(lm_expr *e, bool transposed, lm_tensor *a, lm_tensor *b) {
  return transposed ? lm_e_t(e, lm_e_mm(e, lm_e_t(e, b), lm_e_t(e, a))) : lm_e_mm(e, a, b);
}

lm_tensor *lm_f_rows(lm_expr *e, lm_tensor *g) {
  if (!g || g->ndim == 2) return g;
  lm_ints size = {.n = 2, .v = {1, g->size[g->ndim - 1]}};
  for (int d = 0; d < g->ndim - 1; d++) size.v[0] *= g->size[d];
  return lm_e_reshape(e, g, size);
}

lm_tensor *lm_f_cat_grad(lm_expr *e, lm_tensor *g, int64_t dim, const lm_ints *sizes, int at, lm_before *before) {
  if (!g) return NULL;
  const lm_ints *own = &sizes[at];
  if (own->n == 1 && own->v[0] == 0 && g->ndim != 1) return NULL; /* an empty tensor, which cat ignores */
  int d = normal_dim(dim == LM_NO_DIM ? 0 : dim, g->ndim);
  for (; before->n < at; before->n++) {
    if (sizes[before->n].n == g->ndim) before->size += sizes[before->n].v[d];
  }
  return lm_e_narrow(e, g, d, before->size + 1, own->v[d]);
}

lm_tensor *lm_f_packed_weight(lm_expr *e, lm_tensor *g, lm_tensor *positions, const lm_ints *sizes, int at) {
  if (!g) return NULL;
  int64_t count = 1;
  for (int d = 0; d < sizes[at].n; d++) count *= sizes[at].v[d];
  int64_t position = positions->numel > at ? ((const int64_t *)positions->data)[at] : 0;
  return lm_e_reshape(e, lm_e_narrow(e, g, 0, position + 1, count), sizes[at]);
}

lm_tensor *lm_f_scattered_grad(lm_expr *e, lm_tensor *g, int64_t dim, lm_tensor *index, lm_ints size) {
  if (!g) return NULL;
  lm_tensor *r = lm_e_gather(e, g, dim, index);
  for (int d = 0; r && d < size.n && d < r->ndim; d++) {
    if (r->size[d] == size.v[d]) continue;
    lm_ints wider = size_of(r);
    wider.v[d] = size.v[d];
    r = r->size[d] == 0 ? lm_f_zeros_of(e, g, wider) : lm_e_slice_backward(e, r, wider, d, 1, 1);
  }
  return r;
}

static lm_tensor *flat_plane(lm_expr *e, lm_tensor *g) {
  lm_ints size = {.n = g->ndim - 1};
  memcpy(size.v, g->size, sizeof(int64_t) * (size_t)size.n);
  size.v[size.n - 1] *= g->size[g->ndim - 1];
  return lm_e_reshape(e, g, size);
}

/* Returns positions along an axis, from 0, of element `at` of each window, as [..., n] in t's last dims. */
static lm_tensor *window_positions(lm_expr *e, lm_tensor *at, int64_t n, int64_t stride, int64_t padding,
                                   int64_t dilation) {
  lm_tensor *first =
      lm_e_arange(e, (double)-padding, (double)(n * stride - padding), (double)stride, LM_I64, at->device);
  return lm_e_add(e, first, at, (double)dilation);
}

/* Computes the number of max pooling's windows down and across, and their strides; false for invalid arguments. */
static bool count_windows(const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride, const int64_t *padding,
                          const int64_t *dilation, bool ceil_mode, int64_t *out, int64_t *step) {
  const lm_op_id op = LM_OP_max_pool2d;
  const int64_t *in = x->size + x->ndim - 2;
  memcpy(step, stride, 2 * sizeof *step);
  return lm_check_windows(op, kernel_size, step, padding, dilation) == LM_OK &&
         lm_check_pooled(op, kernel_size, step, padding, dilation, ceil_mode, in[0], in[1], &out[0], &out[1]) == LM_OK;
}

bool lm_f_has_empty_window(const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                           const int64_t *padding, const int64_t *dilation, bool ceil_mode) {
  int64_t out[2], step[2];
  if (lm_max(dilation[0], dilation[1]) < 2 || lm_max(padding[0], padding[1]) < 1) return false;
  if (x->ndim < 3 || x->ndim > 4 || x->numel == 0) return false;
  if (!count_windows(x, kernel_size, stride, padding, dilation, ceil_mode, out, step)) return false;
  const int64_t *in = x->size + x->ndim - 2;
  return lm_round_up(padding[0], dilation[0]) - padding[0] >= in[0] ||
         lm_round_up(padding[1], dilation[1]) - padding[1] >= in[1];
}

lm_pads lm_f_window_padding(lm_expr *e, const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                            const int64_t *padding, const int64_t *dilation, bool ceil_mode) {
  int64_t out[2] = {0}, step[2];
  lm_pads pads = {.n = 4};
  lm_e_ok(e, count_windows(x, kernel_size, stride, padding, dilation, ceil_mode, out, step) ? LM_OK : LM_E_SHAPE);
  for (int i = 0; i < 2; i++) { /* lm_pads lists the last dim first */
    const int64_t reach = (out[i] - 1) * step[i] + dilation[i] * (kernel_size[i] - 1) + 1;
    pads.v[2 - 2 * i] = padding[i];
    pads.v[3 - 2 * i] = reach - x->size[x->ndim - 2 + i] - padding[i];
  }
  return pads;
}

lm_tensor *lm_f_pooled_indices(lm_expr *e, lm_tensor *g, lm_tensor *indices, const int64_t *kernel_size,
                               const int64_t *stride, const int64_t *padding, const int64_t *dilation) {
  if (!g) return NULL;
  const int last = g->ndim - 1;
  const lm_ints size = size_of(indices);
  if (indices->dtype == LM_U8) {
    const int64_t *step = stride[0] == LM_NO_INT ? kernel_size : stride;
    lm_tensor *taps = lm_e_add(e, indices, lm_e_arange(e, 0, 1, 1, LM_I64, g->device), 1); /* converts to int64 */
    lm_tensor *width = lm_e_number(e, (double)kernel_size[1]);
    lm_tensor *down = lm_e_transpose(e, lm_e_floor_divide(e, taps, width), last - 1, last);
    lm_tensor *across = lm_e_remainder(e, taps, width);
    down = window_positions(e, down, size.v[last - 1], step[0], padding[0], dilation[0]);
    across = window_positions(e, across, size.v[last], step[1], padding[1], dilation[1]);
    indices = lm_e_add(e, lm_e_add(e, across, lm_e_number(e, 1), 1), lm_e_transpose(e, down, last - 1, last),
                       (double)g->size[last]);
  }
  lm_tensor *values = lm_e_gather(e, flat_plane(e, g), last - 1, flat_plane(e, indices));
  return lm_e_reshape(e, values, size);
}

lm_tensor *lm_f_cut_to(lm_expr *e, lm_tensor *t, lm_ints size) {
  for (int d = 0; t && t->ndim == size.n && d < size.n; d++) {
    if (size.v[d] < t->size[d]) t = lm_e_narrow(e, t, d, 1, size.v[d]);
  }
  return t;
}

int64_t lm_f_heads_of(const lm_tensor *t) { return t->ndim > 2 ? t->size[t->ndim - 3] : 1; }

double lm_f_scale_of(double scale, const lm_tensor *query) {
  int64_t width = query->size[query->ndim - 1];
  return scale == scale ? scale : 1 / sqrt(width > 0 ? (double)width : 1);
}

/* Returns t's sizes with its dim of heads split into `heads` and `each`. */
static lm_ints with_heads(const lm_tensor *t, int64_t heads, int64_t each) {
  lm_ints size = {.n = t->ndim + 1};
  int at = t->ndim - 3;
  for (int d = 0; d < t->ndim; d++) size.v[d < at ? d : d + 1] = t->size[d];
  size.v[at] = heads, size.v[at + 1] = each;
  return size;
}

lm_tensor *lm_f_repeated_heads(lm_expr *e, lm_tensor *t, int64_t groups) {
  if (!t || groups <= 1) return t;
  int at = t->ndim - 3;
  lm_ints size = size_of(t);
  lm_tensor *each = lm_e_expand(e, lm_e_unsqueeze(e, t, at + 1), with_heads(t, t->size[at], groups));
  size.v[at] *= groups;
  return lm_e_reshape(e, each, size);
}

lm_tensor *lm_f_summed_heads(lm_expr *e, lm_tensor *t, int64_t groups) {
  if (!t || groups <= 1) return t;
  int at = t->ndim - 3;
  lm_tensor *each = lm_e_reshape(e, t, with_heads(t, t->size[at] / groups, groups));
  return lm_e_sum(e, each, (lm_ints){.n = 1, .v = {at + 1}}, false, LM_NO_DTYPE);
}

bool lm_f_attention_is_fused(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                             const lm_tensor *mask, bool causal, double dropout_p) {
  bool trained = lm_requires_grad(query) || lm_requires_grad(key) || lm_requires_grad(value);
  if (LM_DEVICE_KIND(query->device) == LM_CPU || (mask && query->ndim != 4)) return false;
  return lm_attention_fuses(query, key, value, mask, causal, dropout_p, false) &&
         (!(trained || dropout_p > 0) || lm_attention_fuses(query, key, value, mask, causal, dropout_p, true));
}

/* Returns true if a GPU's fused attention is faster than products and softmax. A block takes its keys one tile after
 * the other, so few blocks of many keys would take longer. Products use tensor cores better, so they are preferred
 * while the memory for all scores does not matter. Our kernel, with TF32, or in half precision where cuDNN declines,
 * computes the scores once for each `widest` features, and leaves processors idle if there are few blocks. */
static bool suits_gpu(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value, const lm_tensor *mask,
                      bool causal, double dropout_p) {
  enum { QUERIES = 64, FEW_KEYS = 256, FEW_BLOCKS = 32, PROCESSORS = 128, FEW_SCORES = 1 << 28 };
  int64_t queries = query->size[query->ndim - 2], keys = key->size[key->ndim - 2], rows = 1;
  for (int d = 0; d < query->ndim - 2; d++) rows *= query->size[d];
  int64_t blocks = rows * lm_ceil_div(queries, QUERIES), width = query->size[query->ndim - 1];
  bool tf32 = query->dtype == LM_F32 && lm_setting_get(LM_SETTING_MATMUL_TF32);
  bool ours = tf32 || (lm_f_is_half(query) && !lm_f_attention_is_fused(query, key, value, mask, causal, dropout_p));
  int64_t widest = tf32 ? 64 : 128;
  bool wide = width > widest || value->size[value->ndim - 1] > widest;
  if (ours && (wide || (keys > FEW_KEYS && blocks < PROCESSORS)) && rows * queries * keys <= FEW_SCORES) return false;
  return keys <= FEW_KEYS || (queries >= QUERIES / 2 && blocks >= FEW_BLOCKS);
}

bool lm_f_attention_is_possible(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                                const lm_tensor *mask) {
  const lm_tensor *all[] = {query, key, value};
  const int ndim = query->ndim;
  for (int k = 0; k < 3; k++) {
    if (all[k]->ndim != ndim || all[k]->dtype != query->dtype || all[k]->device != query->device) return false;
  }
  int64_t heads = lm_f_heads_of(key);
  bool alike = (ndim == 3 || (ndim == 4 && query->size[0] == key->size[0] && key->size[0] == value->size[0])) &&
               heads == lm_f_heads_of(value) && heads > 0 && lm_f_heads_of(query) % heads == 0;
  bool masked = !mask || (mask->ndim <= ndim && !lm_requires_grad(mask) && mask->device == query->device &&
                          (mask->dtype == LM_BOOL || mask->dtype == query->dtype));
  return alike && masked;
}

bool lm_f_attention_is_supported(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                                 const lm_tensor *mask, bool causal, double dropout_p) {
  return lm_f_attention_is_possible(query, key, value, mask) &&
         (LM_DEVICE_KIND(query->device) == LM_CPU || suits_gpu(query, key, value, mask, causal, dropout_p));
}

bool lm_f_grouped_norm_is_supported(const lm_tensor *x, const lm_tensor *weight, const lm_tensor *bias) {
  const lm_tensor *params[] = {weight, bias};
  lm_dtype wide = x->dtype == LM_F64 ? LM_F64 : LM_F32;
  for (int k = 0; k < 2; k++) {
    const lm_tensor *t = params[k];
    if (t && (t->device != x->device || (t->dtype != x->dtype && t->dtype != wide))) return false;
  }
  return LM_DEVICE_KIND(x->device) == LM_CPU && lm_dtype_is_float(x->dtype) && x->numel > 0;
}

bool lm_f_rms_norm_rows_is_supported(const lm_tensor *x, const lm_tensor *weight) {
  return LM_DEVICE_KIND(x->device) == LM_CPU && lm_dtype_is_float(x->dtype) && x->numel > 0 &&
         (!weight || (weight->device == x->device && weight->dtype == x->dtype));
}

lm_tensor *lm_f_unpermuted(lm_expr *e, lm_tensor *g, lm_ints dims) {
  if (!g) return NULL;
  lm_ints back = {.n = g->ndim};
  for (int i = 0; i < g->ndim; i++) { back.v[dims.n < 0 ? g->ndim - 1 - i : normal_dim(dims.v[i], g->ndim)] = i; }
  return lm_e_permute(e, g, back);
}

/* Normalizes an index that counts from 1, or from -1 at the end, to count from 1. */
static int64_t normal_entry(int64_t entry, int64_t n) { return entry < 0 ? entry + n + 1 : entry; }

lm_tensor *lm_f_select_grad(lm_expr *e, lm_tensor *g, int64_t dim, int64_t index, lm_ints size) {
  int d = normal_dim(dim, size.n);
  return lm_e_slice_backward(e, lm_e_unsqueeze(e, g, d), size, d, normal_entry(index, size.v[d]), 1);
}

lm_tensor *lm_f_slice_grad(lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size) {
  if (!g) return NULL;
  int d = normal_dim(dim, size.n);
  if (g->size[d] == 0) return lm_f_zeros_of(e, g, size);
  first = normal_entry(first, size.v[d]);
  return lm_e_slice_backward(e, g, size, d, first < 1 ? 1 : first, step);
}

lm_tensor *lm_f_slice_grad_grad(lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size) {
  if (!g) return NULL;
  int d = normal_dim(dim, size.n);
  int64_t n = size.v[d];
  if (n == 0) return lm_e_narrow(e, g, d, 1, 0);
  first = normal_entry(first, g->size[d]);
  return lm_e_slice(e, g, d, first, first + (n - 1) * step, step);
}

lm_tensor *lm_f_along(lm_expr *e, lm_tensor *t, int64_t dim, int64_t ndim) {
  lm_ints size = {.n = (int)ndim};
  if (!t) return NULL;
  for (int d = 0; d < ndim; d++) size.v[d] = d == dim ? t->size[0] : 1;
  return lm_e_reshape(e, t, size);
}

lm_tensor *lm_f_reduced(lm_expr *e, lm_tensor *t, int reduction) {
  const lm_ints all = {.n = -1};
  if (reduction == LM_NONE) return t;
  return reduction == LM_MEAN ? lm_e_mean(e, t, all, false, LM_NO_DTYPE) : lm_e_sum(e, t, all, false, LM_NO_DTYPE);
}

/* Returns the total padding of "same" along dim i; 0 if the arguments are invalid, which conv2d reports. */
static int64_t same_indices(const lm_tensor *weight, const int64_t *dilation, int64_t i) {
  int64_t kernel = weight->ndim == 4 ? weight->size[1 + i] : 0, step = dilation[i - 1];
  bool sound = step > 0 && step <= INT32_MAX && kernel > 0 && kernel <= INT32_MAX;
  return sound ? step * (kernel - 1) : 0;
}

int64_t lm_f_same_padding(const lm_tensor *weight, const int64_t *dilation, int64_t i) {
  return same_indices(weight, dilation, i) / 2;
}

lm_tensor *lm_f_padded_to_same(lm_expr *e, lm_tensor *x, lm_tensor *weight, const int64_t *dilation) {
  int64_t rows = same_indices(weight, dilation, 1) % 2, columns = same_indices(weight, dilation, 2) % 2;
  return rows || columns ? lm_e_pad(e, x, (lm_pads){4, {0, columns, 0, rows}}, LM_PAD_CONSTANT, NULL) : x;
}

/* ---- numbers, sizes and names */

bool lm_f_given(const lm_tensor *t) { return t != NULL; }
bool lm_f_defined(const lm_tensor *t) { return t != NULL; }
bool lm_f_is_number(const lm_tensor *t) { return t && t->number; }
bool lm_f_is_float(const lm_tensor *t) { return t && lm_dtype_is_float(t->dtype); }
bool lm_f_is_half(const lm_tensor *t) { return t && lm_dtype_is_half(t->dtype); }
bool lm_f_on_cpu(const lm_tensor *t) { return t && LM_DEVICE_KIND(t->device) == LM_CPU; }
bool lm_f_is_bool(const lm_tensor *t) { return t && t->dtype == LM_BOOL; }
const char *lm_f_dtype_of(const lm_tensor *t) { return t ? lm_dtype_name(t->dtype) : "nothing"; }
int64_t lm_f_largest_power(const lm_tensor *t) { return t && t->dtype == LM_F64 ? 308 : 38; }
/* Returns the epsilon of the dtype that a dtype's ops compute in; 0 for integers. */
static double epsilon_of(lm_dtype dtype) {
  static const double of[] = {[LM_F16] = 0x1p-23, [LM_BF16] = 0x1p-23, [LM_F32] = 0x1p-23, [LM_F64] = 0x1p-52};
  return lm_dtype_is_float(dtype) ? of[dtype] : 0;
}
double lm_f_epsilon_of(const lm_tensor *t) { return t ? epsilon_of(t->dtype) : 0; }
int64_t lm_f_ndim_of(const lm_tensor *t) { return t ? t->ndim : 0; }
int64_t lm_f_numel_of(const lm_tensor *t) { return t ? t->numel : 0; }

double lm_f_lowest(const lm_tensor *x) {
  int64_t low = 0, high;
  if (lm_dtype_is_float(x->dtype)) return -INFINITY;
  lm_dtype_integers(x->dtype, &low, &high);
  return (double)low;
}

double lm_f_largest(const lm_tensor *t) { return t ? lm_dtype_largest(t->dtype) : 0; }

double lm_f_value_of(lm_tensor *t) {
  double value;
  return t && lm_tensor_item_f64(t, &value) == LM_OK ? value : NAN;
}

double lm_f_power_of_ten(double exponent) { return pow(10, exponent); }

bool lm_f_is_integral(double x) { return x == floor(x); }

double lm_f_cut_for(const lm_tensor *t, double x) { return t && !lm_dtype_is_float(t->dtype) ? trunc(x) : x; }

bool lm_f_same_dtype(const lm_tensor *a, const lm_tensor *b) { return a && b && a->dtype == b->dtype; }

bool lm_f_same_size(const lm_tensor *a, const lm_tensor *b) { return a && b && lm_same_shape(a, b); }

lm_ints lm_f_size_of(const lm_tensor *t) {
  lm_ints s = {.n = t ? t->ndim : 0};
  if (t) memcpy(s.v, t->size, sizeof s.v);
  return s;
}

lm_ints lm_f_negated(lm_ints v) {
  for (int i = 0; i < v.n; i++) v.v[i] = -v.v[i];
  return v;
}

int64_t lm_f_size_along(const lm_tensor *t, int64_t dim) {
  if (dim == LM_NO_DIM) dim = -1;
  if (dim < 0) dim += t->ndim;
  return dim >= 0 && dim < t->ndim ? t->size[dim] : 0;
}
int64_t lm_f_length_of(lm_ints v) { return v.n < 0 ? 0 : v.n; }

bool lm_f_ends_with(lm_ints v, lm_ints last) {
  int64_t n = lm_f_length_of(v), k = lm_f_length_of(last);
  return k <= n && memcmp(v.v + n - k, last.v, (size_t)k * sizeof *v.v) == 0;
}

bool lm_f_divides(int64_t divisor, int64_t n) { return divisor > 0 && n % divisor == 0; }

double lm_f_shown(double x) { return isnan(x) ? NAN : x; }

const char *lm_f_text_of(lm_ints v) { return lm_shape_text((int)lm_f_length_of(v), v.v); }

lm_ints lm_f_range(int64_t first, int64_t last) {
  lm_ints r = {.n = 0};
  for (int64_t d = first < 0 ? 0 : first; d < last && r.n < LM_MAX_DIMS; d++) r.v[r.n++] = d;
  return r;
}

lm_ints lm_f_all_but(int64_t one, int64_t n) {
  lm_ints all = lm_f_range(0, n), r = {.n = 0};
  for (int i = 0; i < all.n; i++) {
    if (all.v[i] != one) r.v[r.n++] = all.v[i];
  }
  return r;
}

static double extreme(lm_op_id op, lm_tensor *t) {
  lm_tensor *found = NULL;
  double value = NAN;
  if (LM_DEVICE_KIND(t->device) != LM_CPU || t->numel == 0 || !lm_dtype_is_float(t->dtype)) return NAN;
  lm_amin_args args = {.x = t, .dim = {.n = -1}}; /* amax takes the same arguments */
  if (lm_op_run(op, &args, &found) == LM_OK && lm_tensor_item_f64(found, &value) != LM_OK) value = NAN;
  lm_release(found);
  return value;
}

double lm_f_least_of(lm_tensor *t) { return extreme(LM_OP_amin, t); }

double lm_f_largest_of(lm_tensor *t) { return extreme(LM_OP_amax, t); }
