/* The recorded graph: nodes, their edges, and what hangs off a tensor. Inside autograd/ only.
 *
 * A node is one recorded op. Its edges lead to the nodes that made its inputs; an input that is a leaf
 * asking for a gradient has a node of its own (LM_NODE_LEAF), which stands for its .grad. Numbers grow
 * with every node, and edges lead to smaller ones only.
 *
 * Ownership runs tensor -> lm_grad -> lm_node -> edges -> older nodes. A node never owns the header of a
 * user's tensor: what it saves are further headers over the same storage (lm_alias), since a header's
 * history changes when it is written in place, and could then lead back to the node. */
#ifndef LM_AUTOGRAD_NODE_H
#define LM_AUTOGRAD_NODE_H

#include <pthread.h>

#include "autograd/autograd.h"

typedef struct lm_node lm_node;
typedef struct lm_grad lm_grad;
struct lm_pass;

typedef struct lm_meta { /* of a result, and so of its gradient */
  lm_dtype dtype;
  uint8_t ndim;
  lm_device device;
  int64_t size[LM_MAX_DIMS];
} lm_meta;

typedef struct lm_edge {
  lm_node *node; /* NULL: no gradient wanted */
  int32_t slot;  /* which of the node's results */
} lm_edge;

typedef struct lm_hook_entry {
  _Atomic int32_t rc;
  bool after; /* of accumulation, else before the gradient continues */
  int64_t id;
  lm_hook hook;
  struct lm_hook_entry *next;
} lm_hook_entry;

/* Who looks at the gradient of one result: hooks, and .grad itself. `lock` guards all of it. */
typedef struct lm_watch {
  _Atomic int32_t rc;
  bool retain;   /* of a result that is no leaf: keep the gradient */
  bool orphaned; /* the tensor is gone: hooks run, .grad is not kept */
  pthread_mutex_t lock;
  lm_tensor *grad;
  lm_tensor *_Atomic grad_buffer; /* of a leaf's gradients; may be looked at, but not used, without the lock */
  lm_hook_entry *hooks;
} lm_watch;

typedef struct lm_node_out {
  lm_meta meta;
  lm_watch *watch;
  lm_tensor *grad; /* collected by the run that has claimed the node */
} lm_node_out;

typedef enum lm_node_kind {
  LM_NODE_OP,
  LM_NODE_LEAF,
  LM_NODE_CUSTOM,
  LM_NODE_EXTRACT,
  LM_NODE_EMBED,
  LM_NODE_OVERWRITE
} lm_node_kind;

/* A view's place within its base: sizes and strides of both, the view's offset in elements. */
typedef struct lm_view_geometry {
  int ndim, base_ndim;
  int64_t offset;
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int64_t base_size[LM_MAX_DIMS], base_stride[LM_MAX_DIMS];
} lm_view_geometry;

struct lm_node {
  _Atomic int32_t rc;
  uint8_t kind, nout;
  bool saved_freed;     /* what it had saved was released by a backward pass */
  bool saves;           /* anything at all */
  bool needs_recompute; /* what it saves is to be computed again first, by its recompute part */
  uint8_t given;        /* LM_NODE_OP: bit k: the op's k-th tensor argument was there */
  int16_t op;           /* LM_NODE_OP: which */
  uint16_t block;
  int32_t nedge;
  uint64_t number;
  /* Of the run that goes through the node: */
  struct lm_pass *_Atomic run;
  int32_t waits_for; /* gradients still to come */
  bool needed, passes_on, queued;
  uint8_t device_queue;                   /* of the thread that works it off (backward_devices.c) */
  lm_node *next;                          /* in a free list, or in the list of those to be destroyed */
  struct lm_recompute *_Atomic recompute; /* the part of the graph that saves nothing; NULL for most */
  int32_t recompute_index;                /* there */
  char *line;       /* of the script, where it was recorded with lm_set_anomaly; owned; may be NULL */
  lm_edge *edge;    /* one for each tensor argument, then one for each tensor of an EACH list */
  lm_node_out *out; /* [nout] */
  void *payload; /* the op's argument struct with saved tensors in place, else NULL; lm_custom_state; lm_view_geometry;
                    int64_t strides of a leaf */
  /* LM_NODE_OP: */
  uint32_t version[LM_MAX_TENSOR_ARGS]; /* of the saved arguments */
  uint32_t result_version[LM_MAX_OUTS];
  lm_tensor *result[LM_MAX_OUTS]; /* saved ones */
  lm_ints *list_size;             /* of an EACH list's tensors */
  uint32_t *list_version;
};

typedef struct lm_custom_state {
  lm_custom_fn fn;
  void *ctx;
  void (*release)(void *ctx);
  int nsaved;
  lm_tensor **saved;
  uint32_t *version;
  char name[]; /* NUL-terminated */
} lm_custom_state;

/* What a tensor's `grad` points to. */
struct lm_grad {
  lm_node *node; /* what made the tensor, or its leaf node; NULL: no gradient wanted */
  int32_t slot;
  bool without_grad; /* a view made in no_grad */
  uint32_t version;  /* of a view: the storage's when `node` was right */
  lm_tensor *base;   /* of a view: the tensor that is none and owns the storage's history */
  lm_watch *watch;   /* may be NULL */
  struct lm_grad *next;
};

/* `payload` bytes follow the node, its outs and its edges; all of it zeroed. rc 1. */
lm_status lm_node_new(lm_node_kind kind, int nout, int nedge, size_t payload, lm_node **out);
void lm_node_release(lm_node *n);
static inline lm_node *lm_node_retain(lm_node *n) {
  if (n) atomic_fetch_add_explicit(&n->rc, 1, memory_order_relaxed);
  return n;
}
/* Release what the node has saved; the node stays in the graph. */
void lm_node_free_saved(lm_node *n);
/* "mul", the name a message uses. */
const char *lm_node_name(const lm_node *n);

void lm_meta_of(const lm_tensor *t, lm_meta *out);
/* What to expect of a gradient that travels along the edge. */
static inline const lm_meta *lm_edge_meta(lm_edge e) { return &e.node->out[e.slot].meta; }

/* t's record, made empty if it has none. */
lm_status lm_grad_need(lm_tensor *t, lm_grad **out);
lm_status lm_grad_new(lm_grad **out);
void lm_grad_free(lm_grad *m); /* also tensor's release function */

lm_status lm_watch_new(lm_watch **out);
void lm_watch_release(lm_watch *w);
void lm_hook_release(lm_hook_entry *h);
/* What a tensor's watch leaves to the next one when its history is replaced: hooks stay with the old
 * result, a request to keep .grad moves on. *out may be NULL. */
lm_status lm_watch_successor(const lm_grad *m, lm_watch **out);
/* Replace m's history by result 0 of `node`; node and watch are taken over. */
void lm_grad_rebase(lm_grad *m, lm_node *node, lm_watch *watch);
/* Its payload: t's strides. */
lm_status lm_leaf_node(const lm_tensor *t, lm_watch *watch, lm_node **out);
/* t's, made if it has none, and seen by the node that made t. LM_E_STATE if t wants no gradient. */
lm_status lm_watch_need(lm_tensor *t, lm_watch **out);

/* Another header over t's storage, without history. Lua numbers are shared: nobody writes to them. */
lm_status lm_alias(lm_tensor *t, lm_tensor **out);
/* Give a header that has none the history `e`. */
lm_status lm_attach(lm_tensor *t, lm_edge e);

/* t's history as it is now (borrowed; node NULL if it wants no gradient). Views of a base that was written
 * since get a new one. */
lm_status lm_history_slow(lm_tensor *t, lm_edge *out);
static inline lm_status lm_history(lm_tensor *t, lm_edge *out) {
  if (t && t->grad) return lm_history_slow(t, out);
  *out = (lm_edge){NULL, 0};
  return LM_OK;
}

/* view_and_inplace.c. Remember that v is a view of x. */
lm_status lm_view_track(lm_tensor *v, lm_tensor *x, lm_grad *spare);
/* The view of x at `memory`, a place within x as it lies; recorded as one at `geometry`, the same within x as its
 * gradient lies. LM_E_ARG if it reaches outside x's storage. */
lm_status lm_view_at(lm_tensor *x, const lm_view_geometry *memory, const lm_view_geometry *geometry, lm_tensor **out);
void lm_view_geometry_of(const lm_tensor *view, const lm_tensor *base, lm_view_geometry *out);
/* A node that reads `geometry` out of what `base` leads to; meta: the view's. */
lm_status lm_extract_node(lm_edge base, const lm_view_geometry *geometry, const lm_meta *meta, lm_node **out);
/* A node for base once its part at `geometry` was written by `written`. */
lm_status lm_overwrite_node(lm_edge base, lm_edge written, const lm_view_geometry *geometry, const lm_meta *meta,
                            lm_node **out);
/* Gradients of EXTRACT, EMBED and OVERWRITE nodes: gin as lm_custom_fn's. */
lm_status lm_view_geometry_backward(const lm_node *n, lm_tensor *g, lm_tensor **gin);

typedef struct lm_grad_request { /* for an edge's gradient */
  bool wanted;
  lm_tensor *grad_buffer; /* where it would best lie; may be NULL */
} lm_grad_request;

/* node_gradients.c. Gradients of a node's inputs from those of its results (g[nout], NULL: undefined), for the
 * edges that are requested: gin[nedge], zeroed before; new references, also after an error. */
lm_status lm_node_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request, bool create_graph,
                            lm_tensor **gin);

/* gradient_sum.c. Adds g, which is yours, to *sum; it may be written to if nobody else sees it. */
lm_status lm_sum_gradient(lm_tensor **sum, lm_tensor *g, bool create_graph);
/* The node took a part of something, of whose gradient there is `sum` already, or NULL: g, the part's, is added to that
 * part of it, without recording. *added: false, and nothing was done, where sum is NULL or somebody else sees it. */
lm_status lm_sum_part_gradient(const lm_node *n, lm_tensor *sum, lm_tensor *g, bool *added);
/* *g, which is yours, summed to the sizes, converted to the dtype and brought to the device of meta. */
lm_status lm_fit_gradient(const lm_meta *meta, lm_tensor **g);
/* A new reference to the home of the leaf's gradient if the next one may be computed there, else NULL. */
lm_tensor *lm_leaf_grad_buffer(const lm_node *leaf);
/* Adds g, which is yours, to the leaf's .grad. */
lm_status lm_leaf_accumulate(lm_node *leaf, lm_tensor *g, bool create_graph);
/* A copy of g added to what retain_grad keeps. */
lm_status lm_watch_keep(lm_watch *w, lm_tensor *g, bool create_graph);

/* tensor_grad_and_hooks.c. Those before the gradient continues may replace *g, which is yours; those after see .grad.
 */
lm_status lm_watch_before(lm_watch *w, const lm_meta *meta, lm_tensor **g);
lm_status lm_watch_after(lm_watch *w);
bool lm_watch_has_hooks(lm_watch *w); /* w may be NULL */

/* call_op.c: backward passes run without autocast and with or without recording. */
typedef struct lm_modes {
  bool no_grad;
  lm_autocast cast;
  struct lm_recompute *recompute;   /* what is recorded belongs to it */
  struct lm_recompute_rerun *rerun; /* a part is computed again */
} lm_modes;
lm_modes lm_modes_swap(lm_modes m); /* restores the earlier ones */
lm_modes *lm_modes_here(void);
/* lm_call without autocast for the op itself, and with it. */
lm_status lm_call_as_is(lm_op_id op, const void *args, lm_tensor **out);
lm_status lm_autocast_call(lm_op_id op, const void *args, lm_tensor **out);

/* anomaly.c. A copy of the line that is recorded at, or NULL. */
char *lm_anomaly_line(void);
/* An error if one of gin[nedge] is NaN; g: the gradients of the results. */
lm_status lm_anomaly_check(const lm_node *n, lm_tensor *const *g, lm_tensor *const *gin);
/* Adds the node's line, if it is known, to the message of an error. */
lm_status lm_anomaly_words(const lm_node *n, lm_status status);

/* recompute.c. Before a node is recorded, so that noting it cannot fail. */
lm_status lm_recompute_reserve(void);
/* A node of an op or a user's function is complete. */
void lm_recompute_add_node(lm_node *n);
/* The node goes. */
void lm_recompute_remove_node(lm_node *n);
/* Has what a hollow node saves computed again. Runs the user's code: on the thread of the backward pass. */
lm_status lm_recompute_run(lm_node *n);

#endif
