/* The recorded graph: nodes, their edges, and what hangs off a tensor. Inside autograd/ only.
 *
 * A node is one recorded op. Its edges lead to the nodes that made its inputs; an input that is a leaf
 * asking for a gradient has a node of its own (LM_NODE_LEAF), which stands for its .grad. Numbers grow
 * with every node, and edges lead to smaller ones only.
 *
 * Ownership runs tensor -> lm_grad -> lm_node -> edges -> older nodes. A node never owns the header of a
 * user's tensor: what it saves are further headers over the same storage (lm_alias), since a header's
 * history changes when it is written in place, and could then lead back to the node. */
#pragma once

#include <pthread.h>

#include "autograd/autograd.h"

typedef struct lm_node lm_node;
typedef struct lm_grad lm_grad;
struct lm_pass;

typedef struct lm_meta { /* of a result, and so of its gradient */
  lm_dtype dtype;
  uint8_t ndim;
  bool transposed; /* a matrix with dense columns, not rows */
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
  lm_tensor *more; /* what its formula adds to it */
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

typedef struct lm_node_list {
  lm_node **node;
  int n;
  size_t capacity;
} lm_node_list;

struct lm_recompute { /* a part of the graph that saves nothing (recompute.c) */
  _Atomic int rc;     /* of its nodes, and of whoever records */
  bool open;          /* more nodes may come */
  pthread_mutex_t lock;
  lm_node_list list; /* not retained: a node takes itself out; NULL: gone */
  lm_hook again;
  lm_autocast cast;
  char where[96];
};

struct lm_node {
  _Atomic int32_t rc;
  uint8_t kind, nout;
  bool saved_freed;     /* what it had saved was released by a backward pass */
  bool saves;           /* anything at all */
  bool needs_recompute; /* what it saves is to be computed again first, by its recompute part */
  uint16_t given;       /* LM_NODE_OP: bit k: the op's k-th tensor argument was there */
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
  const char *line; /* of the script, where it was recorded by lm_anomaly or a profiler; interned; NULL for most */
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
  bool without_grad;                /* a view made in no_grad */
  bool is_cast;                     /* of a leaf: the last scope of autocast has used a low copy */
  uint32_t version;                 /* of a view: the storage's when `node` was right */
  lm_tensor *base;                  /* of a view: the tensor that is none and owns the storage's history */
  lm_watch *watch;                  /* may be NULL */
  struct lm_cast_group *cast_group; /* which the leaf is in, and which lives longer; NULL for most */
  struct lm_grad *next;
};

/* `payload` bytes follow the node, its outs and its edges; all of it zeroed. rc 1. */
lm_status lm_node_new(lm_node_kind kind, int nout, int nedge, size_t payload, lm_node **out);
void lm_node_release(lm_node *n);
void lm_recompute_release(lm_recompute *r);
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

/* Another header over t's storage, without history. Lua numbers are shared: nobody writes to them. */
lm_status lm_alias(lm_tensor *t, lm_tensor **out);
/* Give a header that has none the history `e`. */
lm_status lm_attach(lm_tensor *t, lm_edge e);

/* modes.c. Of this thread. Backward passes run without autocast and with or without recording. */
typedef struct lm_modes {
  bool no_grad;
  lm_autocast cast;
  struct lm_recompute *recompute;   /* what is recorded belongs to it */
  struct lm_recompute_rerun *rerun; /* a part is computed again */
} lm_modes;
lm_modes lm_modes_swap(lm_modes m); /* restores the earlier ones */
extern _Thread_local lm_modes lm_modes_here;
