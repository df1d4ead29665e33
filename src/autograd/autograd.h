/* The entry point for ops: reverse-mode differentiation and autocast.
 *
 * lm_call is what the binding, the layers in C and the rules themselves call: it applies autocast,
 * runs the op and, where grad mode is on and an input asks for it, records a node. */
#pragma once

#include "op/op.h"

/* args: the op's struct; out: room for LM_MAX_OUTS. On success out[0 .. outs-1] are new references
 * of yours (hidden aux results are not handed out); for WRITE ops out[0] is the first tensor. */
LM_API lm_status lm_call(lm_op_id op, const void *args, lm_tensor **out);
/* A POINT op in place on its first argument ("add_"): out[0] is that tensor with one more reference.
 * Errors: a leaf that requires grad while recording; an overlapping x; a result that does not fit
 * x's shape or cannot be cast to its dtype (float into int). */
LM_API lm_status lm_call_inplace(lm_op_id op, const void *args, lm_tensor **out);

/* Modes, per thread. */
LM_API bool lm_grad_enabled(void);
LM_API void lm_set_grad_enabled(bool on);
typedef struct lm_autocast {
  uint8_t on;                      /* bit k: for tensors of device kind k */
  uint8_t keeps;                   /* the same bits within an op whose results are float32 (LM_KEEP_RESULT) */
  bool uncached;                   /* weights are cast at every use */
  lm_dtype dtype[LM_DEVICE_KINDS]; /* the low dtype */
} lm_autocast;
LM_API lm_autocast lm_autocast_get(void);
LM_API void lm_autocast_set(lm_autocast mode);
/* A scope on this thread: enter returns the mode that leave restores. Low copies of weights are kept until the
 * outermost scope is left. */
LM_API lm_autocast lm_autocast_enter(lm_autocast mode);
LM_API void lm_autocast_leave(lm_autocast before);
/* Those kept so far on this thread are made again when next needed. */
LM_API void lm_autocast_forget(void);
/* Leaves that autocast casts together, as far as they are weights on one GPU. The group holds them; each is in one. */
typedef struct lm_cast_group lm_cast_group;
LM_API lm_status lm_cast_group_new(int n, lm_tensor *const *leaves, lm_cast_group **out);
LM_API void lm_cast_group_free(lm_cast_group *g); /* may be NULL */

LM_API bool lm_requires_grad(const lm_tensor *t); /* leaf that asks, or result of a recorded op */
/* LM_E_DTYPE unless floating; LM_E_STATE when turning it off on a non-leaf. */
LM_API lm_status lm_set_requires_grad(lm_tensor *t, bool on);
LM_API bool lm_is_leaf(const lm_tensor *t);
/* Of a view: the tensor that it keeps alive for the sake of in-place writes. Borrowed; NULL for others. */
LM_API lm_tensor *lm_view_base(const lm_tensor *t);
LM_API lm_tensor *lm_grad_of(const lm_tensor *t); /* borrowed, may be NULL */
/* grad: retained; NULL clears. Sizes, dtype and device must be t's. */
LM_API lm_status lm_set_grad(lm_tensor *t, lm_tensor *grad);
/* Where the leaf's gradients shall lie. Backward computes a gradient right there where it can, and it becomes .grad as
 * it is; else .grad lies elsewhere, as without a home. home: retained; dense, of the leaf's sizes, dtype and device,
 * and alone on its storage: while another header lies on that (.grad, or a former one that somebody keeps), it is not
 * used. NULL takes the home away. */
LM_API lm_status lm_set_grad_buffer(lm_tensor *leaf, lm_tensor *grad_buffer);
LM_API lm_status lm_retain_grad(lm_tensor *t);
/* "MulBackward"-like name of what made t ("mul"), NULL for a leaf. */
LM_API const char *lm_grad_fn_name(const lm_tensor *t);

/* Gradients of the sum over i of grads[i] . roots[i]. grads[i] may be NULL for a one-element root.
 * Without inputs they add up in the leaves' grad; with inputs they go to out[i] (new references;
 * NULL where unused and allow_unused) and leaves stay as they are. Backward frees what was saved
 * unless retain_graph; create_graph records the backward pass itself. */
typedef struct lm_backward_args {
  int nroots;
  lm_tensor *const *roots, *const *grads; /* grads may be NULL */
  int ninputs;
  lm_tensor *const *inputs;
  bool retain_graph, create_graph, allow_unused;
} lm_backward_args;
LM_API lm_status lm_backward(const lm_backward_args *a, lm_tensor **out);

/* Hooks: fn may replace the gradient by setting *replacement (a new reference). Run on the thread
 * that called backward. ctx is released with release(ctx) when the hook or its tensor goes, also when
 * registering fails. */
typedef lm_status (*lm_hook_fn)(void *ctx, lm_tensor *grad, lm_tensor **replacement);
typedef struct lm_hook {
  lm_hook_fn fn;
  void *ctx;
  void (*release)(void *ctx);
} lm_hook;
/* Before the gradient of t is passed on (or accumulated). *id serves lm_remove_hook. */
LM_API lm_status lm_register_hook(lm_tensor *t, lm_hook hook, int64_t *id);
/* After t's grad has been accumulated; t must be a leaf. `grad` is t's own grad. */
LM_API lm_status lm_register_accumulate_hook(lm_tensor *t, lm_hook hook, int64_t *id);
LM_API void lm_remove_hook(lm_tensor *t, int64_t id);
/* Called inside a hook: fn runs once when the backward pass of this thread is through, after every gradient has been
 * accumulated (grad: NULL); its error is the pass's. Of passes within passes (recomputed parts of a graph) it is the
 * outermost one that counts. Where that fails, ctx is released without fn having run. LM_E_STATE outside of a pass. */
LM_API lm_status lm_backward_finally(lm_hook hook);
/* From `on` to as many offs, passes over several devices run hooks and custom functions in the order of the
 * graph, the latest first, as those over one device always do; else as soon as each device comes to them. */
LM_API void lm_backward_keep_order(bool on);
/* Inside a hook: whether the passes that run on this thread lead to this leaf. */
LM_API bool lm_backward_reaches(const lm_tensor *leaf);

/* The recorded graph, for those who show it. A node lives as long as the tensor it was found from. */
typedef struct lm_graph_node {
  const char *name, *line; /* line: of the script, where it was noted (base/interned.h); else NULL */
  bool is_leaf;
  int nedge;
  lm_dtype dtype; /* of the first result */
  int ndim;
  const int64_t *size;
} lm_graph_node;
LM_API const struct lm_node *lm_graph_node_of(lm_tensor *t); /* what made t, or its own if it is a leaf; or NULL */
LM_API lm_graph_node lm_graph_describe(const struct lm_node *node);
LM_API const struct lm_node *lm_graph_edge(const struct lm_node *node, int k); /* NULL: no gradient goes there */

/* Looking for NaN, per thread: while it is on, what is recorded knows the script's line (base/interned.h), and a
 * backward pass fails at the first op that makes a NaN, naming it. Slow. */
LM_API bool lm_anomaly(void);
LM_API void lm_set_anomaly(bool on);

/* What is recorded from begin to end on this thread saves nothing. When backward first needs something of it, `again`
 * (a hook without a gradient) has to make the same calls once more: with autocast as it was at begin, it runs on the
 * thread of the backward pass, whose errors its errors are. It is an error if a tensor from outside that is needed was
 * written in place in between. `where`: the script's line, for messages, copied. *out is NULL where nothing is recorded
 * or within another such part, to which all belongs. again.ctx is released when it is not needed any more. */
typedef struct lm_recompute lm_recompute;
LM_API lm_status lm_recompute_begin(lm_hook again, const char *where, lm_recompute **out);
LM_API void lm_recompute_end(lm_recompute *r); /* r may be NULL */
LM_API bool lm_recompute_is_active(void);      /* what runs is recorded so, for the first time or again */

/* A user's function (lm.autograd.Function): after its forward ran without recording, ties outputs to
 * inputs by a node whose backward calls fn with the outputs' gradients (NULL: undefined) and wants
 * the inputs' in gin (new references, NULL: none). saved tensors are version-checked before. ctx goes
 * over to the node; it is released at once where nothing is recorded, and after an error. */
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
/* The node that lm_custom_record made, from out[0] right after; it lives at least until ctx is released. */
LM_API struct lm_node *lm_custom_node(const lm_tensor *out);
/* For lm_custom_fn: saved[i] of its node with the history it had: that of input `in`, or of result `out`
 * of the node itself, or none where both are -1. A new reference. */
LM_API lm_status lm_custom_saved(struct lm_node *node, int i, int in, int out, lm_tensor **result);
