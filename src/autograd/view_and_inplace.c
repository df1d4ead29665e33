/* Tracks views and in-place writes. A view remembers its base, the tensor whose history covers all of the storage.
 * Writing into a view puts an OVERWRITE node on the base. Every view of it then finds its history stale by the
 * storage's version, and reads its part of the base by an EXTRACT node. */
#include <string.h>

#include "autograd/record_graph.h"

lm_status lm_view_track(lm_tensor *v, lm_tensor *x, lm_grad *spare) {
  lm_grad *m = spare;
  if (!m) NEED(lm_grad_new(&m));
  lm_tensor *base = x->grad && x->grad->base ? x->grad->base : x;
  m->base = lm_retain(base->storage == v->storage ? base : x);
  m->version = lm_version(v);
  m->without_grad = !lm_grad_enabled();
  v->grad = m;
  return LM_OK;
}

void lm_view_geometry_of(const lm_tensor *view, const lm_tensor *base, lm_view_geometry *out) {
  out->ndim = view->ndim;
  out->base_ndim = base->ndim;
  out->offset = view->numel == 0 ? 0 : (view->data - base->data) / (int64_t)lm_dtype_size(view->dtype);
  memcpy(out->size, view->size, sizeof out->size);
  memcpy(out->stride, view->stride, sizeof out->stride);
  memcpy(out->base_size, base->size, sizeof out->base_size);
  memcpy(out->base_stride, base->stride, sizeof out->base_stride);
}

lm_status lm_geometry_node(lm_node_kind kind, const lm_view_geometry *p, const lm_meta *meta, lm_edge first,
                           lm_edge second, lm_node **out) {
  NEED(lm_node_new(kind, 1, 2, sizeof *p, out));
  memcpy((*out)->payload, p, sizeof *p);
  (*out)->out[0].meta = *meta;
  (*out)->edge[0] = (lm_edge){lm_node_retain(first.node), first.slot};
  (*out)->edge[1] = (lm_edge){lm_node_retain(second.node), second.slot};
  return LM_OK;
}

lm_status lm_view_at(lm_tensor *x, const lm_view_geometry *memory, const lm_view_geometry *geometry, lm_tensor **out) {
  LM_OWNED *v = NULL;
  LM_OWNED_NODE *node = NULL;
  lm_edge history = {NULL, 0};
  lm_meta meta;
  NEED(lm_tensor_view(x, memory->ndim, memory->size, memory->stride, memory->offset, &v));
  if (lm_dtype_is_float(x->dtype)) {
    if (lm_grad_enabled()) NEED(lm_history(x, &history));
    if (history.node) {
      lm_meta_of(v, &meta);
      NEED(lm_geometry_node(LM_NODE_EXTRACT, geometry, &meta, history, (lm_edge){NULL, 0}, &node));
    }
    NEED(lm_view_track(v, x, NULL));
    v->grad->node = node;
    node = NULL;
  }
  *out = lm_tensor_take(&v);
  return LM_OK;
}

static lm_status refresh(lm_tensor *v, lm_grad *m) {
  lm_edge base;
  lm_node *node = NULL;
  LM_OWNED_WATCH *watch = NULL;
  NEED(lm_history(m->base, &base));
  if (base.node) {
    lm_view_geometry geometry;
    lm_meta meta;
    lm_view_geometry_of(v, m->base, &geometry);
    lm_meta_of(v, &meta);
    NEED(lm_watch_successor(m, &watch));
    NEED(lm_geometry_node(LM_NODE_EXTRACT, &geometry, &meta, base, (lm_edge){NULL, 0}, &node));
  }
  lm_grad_rebase(m, node, watch);
  watch = NULL;
  m->version = lm_version(v);
  return LM_OK;
}

static bool has_meta(const lm_tensor *t, const lm_meta *meta) {
  return t->dtype == meta->dtype && t->device == meta->device && t->ndim == meta->ndim &&
         memcmp(t->size, meta->size, sizeof(int64_t) * t->ndim) == 0;
}

lm_status lm_history_slow(lm_tensor *t, lm_edge *out) {
  lm_grad *m = t->grad;
  if (m->base && m->base->storage != t->storage) { /* the view or its base got other memory (lm_tensor_set_data) */
    lm_release(m->base);
    m->base = NULL;
  }
  if (m->base) {
    if (m->version != lm_version(t)) NEED(refresh(t, m));
  } else if (m->node && m->node->kind == LM_NODE_LEAF && !has_meta(t, &m->node->out[0].meta)) {
    lm_node *leaf; /* moved or converted since: earlier graphs keep their leaf */
    NEED(lm_leaf_node(t, m->watch, &leaf));
    lm_node_release(m->node);
    m->node = leaf;
  }
  *out = (lm_edge){m->node, m->slot};
  return LM_OK;
}
