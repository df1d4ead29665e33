/* Computes gradients between a base and its views: EXTRACT reads a view's part of the base's gradient, EMBED adds to
 * that part. */
#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "op/check.h"
#include "op_entries.h"

/* The range of elements that covers base and view: a view may begin before its base, and end after it. */
typedef struct span {
  int64_t n, base, view; /* number of elements; offsets of the base and of the view */
} span;

/* Returns the number of elements from the first to the last in memory; 0 for an empty tensor. */
static int64_t reach_of(int ndim, const int64_t *size, const int64_t *stride) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) {
    if (size[d] == 0) return 0;
    n += (size[d] - 1) * stride[d];
  }
  return n;
}

static span span_of(const lm_view_geometry *p) {
  int64_t base = reach_of(p->base_ndim, p->base_size, p->base_stride), view = reach_of(p->ndim, p->size, p->stride);
  int64_t offset = view == 0 ? 0 : p->offset, before = offset < 0 ? -offset : 0;
  int64_t end = offset + view > base ? offset + view : base;
  return (span){.n = before + end, .base = before, .view = before + offset};
}

static bool to_layout_of_base(const lm_tensor *t, const lm_view_geometry *p) {
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] > 1 && t->stride[d] != p->base_stride[d]) return false;
  }
  return true;
}

static lm_status as_base(lm_tensor *flat, const lm_view_geometry *p, lm_tensor **out) {
  return lm_tensor_view(flat, p->base_ndim, p->base_size, p->base_stride, span_of(p).base, out);
}

/* Returns the view's elements in `flat`; dims with stride 0 have size 1 if `once`. */
static lm_status as_view(lm_tensor *flat, const lm_view_geometry *p, bool once, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS];
  for (int d = 0; d < p->ndim; d++) size[d] = once && p->stride[d] == 0 && p->size[d] > 1 ? 1 : p->size[d];
  return lm_tensor_view(flat, p->ndim, size, p->stride, span_of(p).view, out);
}

static lm_status flat_zeros(lm_dtype dtype, lm_device device, const lm_view_geometry *p, lm_tensor **out) {
  lm_zeros_args args = {.size = {.n = 1, .v = {span_of(p).n}}, .dtype = dtype, .device = device};
  return lm_op_run(LM_OP_zeros, &args, out);
}

static lm_status copy_into(lm_tensor *x, lm_tensor *src) {
  LM_OWNED *same = NULL;
  return lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = x, .src = src}, &same);
}

/* Reads the view p [view's sizes] out of g [base's sizes]. */
static lm_status extract(lm_tensor *g, const lm_view_geometry *p, lm_tensor **out) {
  LM_OWNED *flat = NULL, *whole = NULL;
  span s = span_of(p);
  bool within = s.base == 0 && s.n == reach_of(p->base_ndim, p->base_size, p->base_stride);
  if (within && to_layout_of_base(g, p)) {
    NEED(as_view(g, p, false, out));
  } else {
    NEED(flat_zeros(g->dtype, g->device, p, &flat));
    NEED(as_base(flat, p, &whole));
    NEED(copy_into(whole, g));
    NEED(as_view(flat, p, false, out));
  }
  return LM_OK;
}

/* Returns flat + g at p for a view whose elements share memory: each is added at its position. */
static lm_status add_up(lm_tensor *flat, lm_tensor *g, const lm_view_geometry *p, lm_tensor **out) {
  LM_OWNED *numbers = NULL, *seen = NULL, *indices = NULL, *list = NULL;
  lm_arange_args count = {1, (double)flat->numel + 1, 1, LM_I64, flat->device};
  lm_reshape_args line = {.size = {1, {g->numel}}};
  NEED(lm_op_run(LM_OP_arange, &count, &numbers));
  NEED(as_view(numbers, p, true, &seen));
  line.x = seen;
  NEED(lm_call(LM_OP_reshape, &line, &indices));
  line.x = g;
  NEED(lm_call(LM_OP_reshape, &line, &list));
  return lm_op_run(LM_OP_index_add, &(lm_index_add_args){flat, 0, indices, list, 1}, out);
}

/* Returns zeros [base's sizes] with g [view's sizes] added at p. */
static lm_status embed(lm_tensor *g, const lm_view_geometry *p, lm_tensor **out) {
  LM_OWNED *flat = NULL, *part = NULL, *summed = NULL, *all = NULL;
  lm_sum_args sum = {.x = g, .dim = {.n = 0}, .keepdim = true, .dtype = LM_NO_DTYPE};
  for (int d = 0; d < p->ndim; d++) {
    if (p->stride[d] == 0 && p->size[d] > 1) sum.dim.v[sum.dim.n++] = d;
  }
  if (sum.dim.n > 0) NEED(lm_op_run(LM_OP_sum, &sum, &summed));
  NEED(flat_zeros(g->dtype, g->device, p, &flat));
  NEED(as_view(flat, p, true, &part));
  if (lm_overlaps_itself(part)) {
    NEED(add_up(flat, summed ? summed : g, p, &all));
    NEED(as_base(all, p, out));
  } else {
    NEED(copy_into(part, summed ? summed : g));
    NEED(as_base(flat, p, out));
  }
  return LM_OK;
}

/* Runs extract or embed, recorded if grad mode is on: each is the other's gradient. */
static lm_status apply(lm_node_kind kind, lm_tensor *g, const lm_view_geometry *p, lm_tensor **out) {
  LM_OWNED *result = NULL;
  LM_OWNED_NODE *node = NULL;
  lm_edge history = {NULL, 0};
  lm_meta meta;
  if (lm_grad_enabled()) NEED(lm_history(g, &history));
  NEED(kind == LM_NODE_EXTRACT ? extract(g, p, &result) : embed(g, p, &result));
  if (history.node) {
    lm_meta_of(result, &meta);
    NEED(lm_geometry_node(kind, p, &meta, history, (lm_edge){NULL, 0}, &node));
    NEED(lm_attach(result, (lm_edge){node, 0}));
  }
  *out = lm_tensor_take(&result);
  return LM_OK;
}

/* Returns in *out a copy of g, the base's gradient, with zeros at the elements of the view p. */
static lm_status outside(lm_tensor *g, const lm_view_geometry *p, lm_tensor **out) {
  LM_OWNED *flat = NULL, *part = NULL, *filled = NULL, *mask = NULL, *one = NULL, *zero = NULL;
  NEED(lm_tensor_number(1, &one));
  NEED(lm_tensor_number(0, &zero));
  NEED(flat_zeros(LM_BOOL, g->device, p, &flat));
  NEED(as_view(flat, p, true, &part));
  NEED(lm_op_run(LM_OP_fill_, &(lm_fill__args){part, one}, &filled));
  NEED(as_base(flat, p, &mask));
  return lm_call(LM_OP_masked_fill, &(lm_masked_fill_args){g, mask, zero}, out);
}

lm_status lm_view_geometry_backward(const lm_node *n, lm_tensor *g, lm_tensor **gin) {
  const lm_view_geometry *p = n->payload;
  switch ((lm_node_kind)n->kind) {
    case LM_NODE_EXTRACT: return apply(LM_NODE_EMBED, g, p, &gin[0]);
    case LM_NODE_EMBED: return apply(LM_NODE_EXTRACT, g, p, &gin[0]);
    default: break;
  }
  LM_OWNED *of_base = NULL;
  if (n->edge[0].node) NEED(outside(g, p, &of_base));
  if (n->edge[1].node) NEED(apply(LM_NODE_EXTRACT, g, p, &gin[1]));
  gin[0] = lm_tensor_take(&of_base);
  return LM_OK;
}
