/* Declares the entry point of ops, reverse-mode differentiation and autocast.
 *
 * The binding, the layers in C and the gradient rules call lm_call. It applies autocast, runs the op and records a node
 * if grad mode is on and an input requires grad. */
#pragma once

#include "op/op.h"

/* Calls `op`. args: the op's struct; out: room for LM_MAX_OUTS. On success out[0 .. outs-1] are new references that the
 * caller releases (hidden aux results are not returned); for an op of kind LM_WRITE out[0] is its first tensor. */
LM_API lm_status lm_call(lm_op_id op, const void *args, lm_tensor **out);
/* Calls a pointwise op in place on its first argument x ("add_"); out[0] is x with one more reference. Errors: a leaf
 * that requires grad while recording; an x whose elements share memory; a result that does not fit x's shape or cannot
 * be cast to its dtype (float into int). */
lm_status lm_call_inplace(lm_op_id op, const void *args, lm_tensor **out);

/* Modes of the calling thread. */
LM_API bool lm_grad_enabled(void);
LM_API void lm_set_grad_enabled(bool on);
typedef struct lm_autocast {
  uint16_t on;                     /* bit k: enabled for tensors of device kind k */
  uint8_t keeps;                   /* bit k: set within an op whose results are float32 (LM_KEEP_RESULT) */
  bool uncached;                   /* true if weights are cast at every use */
  lm_dtype dtype[LM_DEVICE_KINDS]; /* the low-precision dtype for each device kind */
} lm_autocast;
LM_API lm_autocast lm_autocast_get(void);
void lm_autocast_set(lm_autocast mode);
/* Opens and closes an autocast scope on this thread: enter returns the mode that leave restores. Low-precision copies
 * of weights are kept until the outermost scope is left. */
LM_API lm_autocast lm_autocast_enter(lm_autocast mode);
LM_API void lm_autocast_leave(lm_autocast before);
uint32_t lm_autocast_scope(void); /* number of this thread's outermost open scope; 0: none */
/* Drops this thread's low-precision copies of weights; they are made again when next needed. */
LM_API void lm_autocast_forget(void);
/* A set of leaves, retained, that autocast casts together if they are weights on one GPU; a leaf is in at most one. */
typedef struct lm_cast_group lm_cast_group;
LM_API lm_status lm_cast_group_new(int n, lm_tensor *const *leaves, lm_cast_group **out);
/* Casts n tensors, dense and in the layouts of `low`, in one launch. */
lm_status lm_cast_together(lm_device device, int n, lm_tensor *const *from, lm_tensor *const *low);
LM_API void lm_cast_group_free(lm_cast_group *g); /* g may be NULL */

LM_API bool lm_requires_grad(const lm_tensor *t); /* true for leaves that require grad and results of recorded ops */
/* Sets requires_grad of t. LM_E_DTYPE unless t is floating point; LM_E_STATE for `on` = false on a non-leaf. */
LM_API lm_status lm_set_requires_grad(lm_tensor *t, bool on);
LM_API bool lm_is_leaf(const lm_tensor *t);
/* Returns the base of a view, which the view keeps alive for in-place writes (borrowed); NULL for other tensors. */
lm_tensor *lm_view_base(const lm_tensor *t);
LM_API lm_tensor *lm_grad_of(const lm_tensor *t); /* borrowed, may be NULL */
/* Sets t's .grad. grad: retained, of t's sizes, dtype and device; NULL clears. */
LM_API lm_status lm_set_grad(lm_tensor *t, lm_tensor *grad);
/* Sets the memory for the leaf's gradients. Backward writes a gradient into it where possible, and .grad then uses it
 * without a copy; otherwise .grad has memory of its own. grad_buffer: retained; dense, of the leaf's sizes, dtype and
 * device. It is used only while no other header uses its storage (.grad, or an earlier one that is still referenced).
 * NULL removes it. */
lm_status lm_set_grad_buffer(lm_tensor *leaf, lm_tensor *grad_buffer);
LM_API lm_status lm_retain_grad(lm_tensor *t);
/* Returns the name of the op that made t ("mul"), like PyTorch's "MulBackward"; NULL for a leaf. */
LM_API const char *lm_grad_fn_name(const lm_tensor *t);

/* Computes gradients of the sum over i of grads[i] . roots[i]. grads[i] may be NULL for a one-element root. Without
 * inputs they are added to the leaves' .grad; with inputs they are stored in out[i] (new references; NULL if unused and
 * allow_unused), and no .grad changes. Backward frees saved tensors unless retain_graph; create_graph records the
 * backward pass itself. */
typedef struct lm_backward_args {
  int nroots;
  lm_tensor *const *roots, *const *grads; /* grads may be NULL */
  int ninputs;
  lm_tensor *const *inputs;
  bool retain_graph, create_graph, allow_unused;
} lm_backward_args;
LM_API lm_status lm_backward(const lm_backward_args *a, lm_tensor **out);

/* A hook: fn may replace the gradient by setting *replacement (a new reference). It runs on the thread that called
 * backward. release(ctx) is called when the hook or its tensor is freed, and when registering fails. */
typedef lm_status (*lm_hook_fn)(void *ctx, lm_tensor *grad, lm_tensor **replacement);
typedef struct lm_hook {
  lm_hook_fn fn;
  void *ctx;
  void (*release)(void *ctx);
} lm_hook;
/* Registers a hook that runs before the gradient of t is passed on or accumulated. Pass *id to lm_remove_hook. */
LM_API lm_status lm_register_hook(lm_tensor *t, lm_hook hook, int64_t *id);
/* Registers a hook that runs after t's .grad has been accumulated; t must be a leaf. `grad` is t's own .grad. With
 * `begin`, it runs after those without, and `grad` is NULL if one of these has dropped .grad; before a pass that adds
 * to .grad runs any node, begin(hook.ctx, create_graph) is called, whose error becomes the pass's. */
typedef lm_status (*lm_hook_begin)(void *ctx, bool create_graph);
LM_API lm_status lm_register_accumulate_hook(lm_tensor *t, lm_hook hook, lm_hook_begin begin, int64_t *id);
LM_API void lm_remove_hook(lm_tensor *t, int64_t id);
/* Registers a callback from inside a hook: fn runs once, with grad NULL, when this thread's outermost backward pass
 * (outside recomputed parts of a graph) has accumulated every gradient. fn's error becomes the pass's error. If the
 * pass fails, ctx is released without fn having run. LM_E_STATE outside of a pass. */
lm_status lm_backward_finally(lm_hook hook);
/* Makes passes over several devices run hooks and custom functions in the order of the graph, the latest first, as
 * passes over one device always do; otherwise each device runs them as soon as it can. Calls are counted: each with
 * true needs one with false. */
LM_API void lm_backward_keep_order(bool on);
/* Returns true inside a hook if a pass that runs on this thread computes this leaf's gradient. */
bool lm_backward_reaches(const lm_tensor *leaf);

/* A node of the recorded graph, for printing it. It lives as long as the tensor it was found from. */
typedef struct lm_graph_node {
  const char *name, *line; /* line: the script's line if it was recorded (base/interned.h), else NULL */
  bool is_leaf;
  int nedge;
  lm_dtype dtype; /* dtype, ndim and size of the first result */
  int ndim;
  const int64_t *size;
} lm_graph_node;
LM_API const struct lm_node *lm_graph_node_of(lm_tensor *t); /* the node that made t, t's own for a leaf, or NULL */
LM_API lm_graph_node lm_graph_describe(const struct lm_node *node);
LM_API const struct lm_node *lm_graph_edge(const struct lm_node *node, int k); /* NULL: input k gets no gradient */

/* Returns true in anomaly detection, per thread: recorded nodes keep the script's line (base/interned.h), and a
 * backward pass fails at the first op that makes a NaN, naming it. Slow. */
LM_API bool lm_anomaly(void);
LM_API void lm_set_anomaly(bool on);

/* Begins and ends a part of the graph that saves no tensors (a checkpoint) on this thread. When backward first needs a
 * saved tensor of it, `again` (a hook without a gradient) must make the same calls once more. It runs with begin's
 * autocast mode on the backward pass's thread, which gets its errors. Writing in place to an outside tensor that is
 * needed is an error. `where`: the script's line for messages, copied. *out is NULL if nothing is recorded, or within
 * another such part, which then owns all nodes. again.ctx is released when no longer needed. */
typedef struct lm_recompute lm_recompute;
LM_API lm_status lm_recompute_begin(lm_hook again, const char *where, lm_recompute **out);
LM_API void lm_recompute_end(lm_recompute *r);  /* r may be NULL */
LM_API bool lm_recompute_is_active(void);       /* true while such a part is recorded, the first time or again */
LM_API bool lm_recompute_is_rerun(void);        /* true while such a part is recorded again */
bool lm_recompute_is_older(const lm_tensor *t); /* true while such a part is recorded again, if t's memory is older */

LM_API void lm_run_next(lm_tensor *t); /* backward runs t's node, whose inputs are leaves, before all existing ones */

/* Records a user's function (lm.autograd.Function) after its forward ran unrecorded: ties outputs to inputs by a node.
 * Its backward calls fn with the outputs' gradients (NULL: undefined), and fn sets the inputs' in gin (new references,
 * NULL: none). Saved tensors are version-checked before. The node takes over ctx; it is released at once if nothing is
 * recorded, and after an error. */
typedef lm_status (*lm_custom_fn)(void *ctx, int ngrad, lm_tensor *const *grad, int nin, lm_tensor **gin);
typedef struct lm_custom {
  const char *name; /* copied */
  lm_custom_fn fn;
  void *ctx;
  void (*release)(void *ctx);
  int nin, nout, nsaved;
  lm_tensor *const *in, *const *out, *const *saved;
} lm_custom;
LM_API lm_status lm_custom_record(const lm_custom *c);
/* Returns the node that lm_custom_record has just made for its out[0]; it lives at least until ctx is released. */
LM_API struct lm_node *lm_custom_node(const lm_tensor *out);
/* Returns in *result, for lm_custom_fn, a new reference to the node's saved[i] with its history: that of input `in`, of
 * result `out` of the node itself, or none if both are -1. */
LM_API lm_status lm_custom_saved(struct lm_node *node, int i, int in, int out, lm_tensor **result);
