/* Declares the recorded graph, private to autograd/: nodes, edges, and the record that a tensor's `grad` points to.
 *
 * A node is one recorded op. Its edges lead to the nodes that made its inputs; an input that is a leaf requiring grad
 * has a node of its own (LM_NODE_LEAF), which represents its .grad. Numbers grow with every node, and edges lead to
 * smaller ones only.
 *
 * Ownership runs tensor -> lm_grad -> lm_node -> edges -> older nodes. A node never owns the header of a user's tensor.
 * It saves further headers over the same storage (lm_alias), since a header's history changes when it is written in
 * place, and could then lead back to the node. */
#pragma once

#include <pthread.h>

#include "autograd/autograd.h"

typedef struct lm_node lm_node;
typedef struct lm_grad lm_grad;
struct lm_pass;

typedef struct lm_meta { /* describes a result, and so its gradient */
  lm_dtype dtype;
  uint8_t ndim;
  bool transposed; /* true for a matrix with dense columns, not rows */
  lm_device device;
  int64_t size[LM_MAX_DIMS];
} lm_meta;

typedef struct lm_edge {
  lm_node *node; /* NULL: no gradient requested */
  int32_t slot;  /* index of one of the node's results, from 0 */
} lm_edge;

typedef struct lm_hook_entry {
  _Atomic int32_t rc;
  bool after; /* true: runs after accumulation; false: before the gradient is passed on */
  int64_t id;
  lm_hook hook;
  lm_hook_begin begin; /* if not NULL, the hook is among the last */
  struct lm_hook_entry *next;
} lm_hook_entry;

/* The hooks and the .grad of one result. `lock` guards the fields that are not atomic: a worker of a backward pass
 * reads them while a hook on another thread may register hooks. */
typedef struct lm_watch {
  _Atomic int32_t rc;
  _Atomic bool retain; /* true if the .grad of a non-leaf is kept (retain_grad) */
  bool orphaned;       /* true once the tensor is freed: hooks run, .grad is not kept */
  _Atomic bool begins; /* true if a hook has ever had a `begin` */
  pthread_mutex_t lock;
  lm_tensor *grad;
  lm_tensor *_Atomic grad_buffer; /* memory for a leaf's gradients; needs the lock, except to test for NULL */
  lm_hook_entry *hooks;
} lm_watch;

typedef struct lm_node_out {
  lm_meta meta;
  lm_watch *_Atomic watch; /* a hook may set it while another thread computes gradients of this node */
  lm_tensor *grad;         /* summed up by the backward pass that has claimed the node */
  lm_tensor *more;         /* a second gradient, which the node's formula adds to `grad` */
} lm_node_out;

typedef enum lm_node_kind {
  LM_NODE_OP,
  LM_NODE_LEAF,
  LM_NODE_CUSTOM,
  LM_NODE_EXTRACT,
  LM_NODE_EMBED,
  LM_NODE_OVERWRITE,
  LM_NODE_FREED
} lm_node_kind;

/* A view's position within its base: sizes and strides of both, the view's offset in elements. */
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

struct lm_recompute { /* a checkpoint: a part of the graph that saves no tensors (recompute.c) */
  _Atomic int rc;     /* references by its nodes, and by the recording */
  bool open;          /* true while recording: more nodes may be added */
  pthread_mutex_t lock;
  lm_node_list list; /* nodes, not retained: each removes itself; NULL: removed */
  lm_hook again;
  lm_autocast cast;
  char where[96];
};

struct lm_node {
  _Atomic int32_t rc;
  uint8_t kind, nout;
  bool saved_freed;     /* true once a backward pass has freed its saved tensors */
  bool saves;           /* true if it saves any tensor */
  bool fetches;         /* true if a saved tensor may be a placeholder */
  bool needs_recompute; /* true if its recompute part must compute its saved tensors again first */
  bool widens;          /* true if a formula recorded it that reads half precision and rounds once */
  uint16_t given;       /* LM_NODE_OP: bit k: the op's k-th tensor argument was not NULL */
  int16_t op;           /* LM_NODE_OP: the lm_op_id */
  uint16_t block;
  int32_t nedge;
  uint64_t number;
  /* State of the backward pass that has claimed the node: */
  struct lm_pass *_Atomic run;
  int32_t waits_for; /* number of gradients still to come */
  bool needed, passes_on, queued;
  uint8_t device_queue;                   /* index of the queue that runs it (backward_devices.c) */
  lm_node *next;                          /* next node of a free list, or of the list to be destroyed */
  struct lm_recompute *_Atomic recompute; /* the part of the graph that saves no tensors; NULL for most */
  int32_t recompute_index;                /* index in recompute->list */
  const char *line; /* the script's line if recorded by lm_anomaly or a profiler; interned; NULL for most */
  lm_edge *edge;    /* one for each tensor argument, then one for each tensor of an EACH list */
  lm_node_out *out; /* [nout] */
  void *payload;    /* the op's argument struct with saved tensors in it, other tensors NULL; lm_custom_state;
                     * lm_view_geometry; a leaf's int64_t strides; lm_freed_state */
  /* LM_NODE_OP: */
  uint32_t version[LM_MAX_TENSOR_ARGS]; /* versions of the saved arguments */
  uint32_t result_version[LM_MAX_OUTS];
  lm_tensor *result[LM_MAX_OUTS]; /* saved results, else NULL */
  lm_ints *list_size;             /* sizes of an EACH list's tensors */
  uint32_t *list_version;
};

typedef struct lm_freed_state { /* stands for a history whose saved tensors were freed: names of two of its nodes */
  const char *name, *freed;     /* the last one; that whose tensors backward would need first */
} lm_freed_state;

typedef struct lm_custom_state {
  lm_custom_fn fn;
  void *ctx;
  void (*release)(void *ctx);
  int nsaved;
  lm_tensor **saved;
  uint32_t *version;
  char name[]; /* NUL-terminated */
} lm_custom_state;

/* The autograd record that a tensor's `grad` points to. */
struct lm_grad {
  lm_node *node; /* node that made the tensor, or its leaf node; NULL: does not require grad */
  int32_t slot;
  bool without_grad;                /* true for a view made in no_grad */
  bool is_cast;                     /* true for a leaf whose low-precision copy the last autocast scope used */
  uint32_t version;                 /* storage version for which a view's `node` is valid */
  lm_tensor *base;                  /* a view's base: the tensor, itself no view, that owns the storage's history */
  lm_watch *watch;                  /* hooks and .grad; NULL if it has neither */
  struct lm_cast_group *cast_group; /* group of the leaf; removes itself here when freed; NULL for most */
  struct lm_grad *next;
};

/* Returns a node with rc 1. Its outs, its edges and `payload` bytes follow it in one block; all zeroed. */
lm_status lm_node_new(lm_node_kind kind, int nout, int nedge, size_t payload, lm_node **out);
void lm_node_release(lm_node *n);
void lm_watch_release(lm_watch *w);
void lm_recompute_release(lm_recompute *r);
static inline lm_node *lm_node_retain(lm_node *n) {
  if (n) atomic_fetch_add_explicit(&n->rc, 1, memory_order_relaxed);
  return n;
}
/* Declare a node or a watch, NULL or a reference that the block owns, as LM_OWNED does a tensor. */
#define LM_OWNED_NODE __attribute__((cleanup(lm_node_drop))) lm_node
#define LM_OWNED_WATCH __attribute__((cleanup(lm_watch_drop))) lm_watch
static inline void lm_node_drop(lm_node **n) { lm_node_release(*n); }
static inline void lm_watch_drop(lm_watch **w) { lm_watch_release(*w); }
/* Frees the node's saved tensors; the node stays in the graph. */
void lm_node_free_saved(lm_node *n);
/* Returns the name that messages use ("mul"). */
const char *lm_node_name(const lm_node *n);

void lm_meta_of(const lm_tensor *t, lm_meta *out);
/* Returns the sizes, dtype and device of gradients for the edge's target. */
static inline const lm_meta *lm_edge_meta(lm_edge e) { return &e.node->out[e.slot].meta; }

/* Returns t's record (borrowed), after creating an empty one if it has none. */
lm_status lm_grad_need(lm_tensor *t, lm_grad **out);
lm_status lm_grad_new(lm_grad **out);
void lm_grad_free(lm_grad *m); /* also registered with tensors as the release function of `grad` */

lm_status lm_watch_new(lm_watch **out);
void lm_hook_release(lm_hook_entry *h);
/* Returns in *out the watch of a tensor whose history is replaced: hooks stay with the old result, a retain_grad
 * request carries over. *out is NULL if there is no such request. */
lm_status lm_watch_successor(const lm_grad *m, lm_watch **out);
/* Replaces m's history by result 0 of `node`; takes over the caller's references to node and watch. */
void lm_grad_rebase(lm_grad *m, lm_node *node, lm_watch *watch);
/* Creates a leaf node for t, with t's strides as payload. */
lm_status lm_leaf_node(const lm_tensor *t, lm_watch *watch, lm_node **out);

/* Returns another header over t's storage, without history. Lua numbers are shared: nobody writes to them. */
lm_status lm_alias(lm_tensor *t, lm_tensor **out);
/* Returns an alias for a node to save: a placeholder if the memory can be fetched again. */
static inline lm_status lm_save(lm_tensor *t, lm_tensor **out) {
  return lm_has_source(t) ? lm_tensor_placeholder(t, out) : lm_alias(t, out);
}
/* Returns the node's i-th slot for a saved tensor; NULL after the last. */
lm_tensor **lm_node_saved(const lm_node *n, int i);
/* Sets the history `e` of a header that has none. */
lm_status lm_attach(lm_tensor *t, lm_edge e);

/* modes.c. This thread's modes. Backward passes run without autocast and with or without recording. */
typedef struct lm_modes {
  bool no_grad;
  lm_autocast cast;
  struct lm_recompute *recompute;   /* part to which recorded nodes belong; NULL: none */
  struct lm_recompute_rerun *rerun; /* the run while a part is computed again, else NULL */
  struct lm_tape *tape;             /* recording of this thread's calls of ops (tape.h), or NULL */
  struct lm_follower *follower;     /* who gets calls of ops by scripts (follow.h), or NULL */
  bool is_watched;                  /* true with a tape or a follower */
} lm_modes;
lm_modes lm_modes_swap(lm_modes m); /* sets m; returns the earlier modes */
extern _Thread_local lm_modes lm_modes_here;
