/* Declares how a backward pass computes, sums and stores gradients by calling ops. Code that records ops does not use
 * it. */
#pragma once

#include "autograd/node.h"

/* Computes gradients of EXTRACT, EMBED and OVERWRITE nodes (view_gradients.c); gin as in lm_custom_fn. */
lm_status lm_view_geometry_backward(const lm_node *n, lm_tensor *g, lm_tensor **gin);

typedef struct lm_grad_request { /* a request for the gradient of one edge */
  bool wanted;
  lm_tensor *grad_buffer; /* preferred memory for the result; may be NULL */
} lm_grad_request;

/* Computes gradients of a node's inputs (node_gradients.c) from those of its results (g[nout], NULL: undefined), for
 * the requested edges: gin[nedge], zeroed before; new references, also after an error. */
lm_status lm_node_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request, bool create_graph,
                            lm_tensor **gin);

/* Returns true if g may be written: nobody else holds g or its memory, and no two elements share memory. It then is no
 * view. */
bool lm_gradient_take(lm_tensor *g);
/* Adds g to *sum and takes over g (gradient_sum.c); *sum or g is written in place if nobody else holds it. */
lm_status lm_sum_gradient(lm_tensor **sum, lm_tensor *g, bool create_graph);
/* Adds g, the gradient of a node that took a part of a tensor, to that part of `sum`, the tensor's gradient so far,
 * without recording. *added: false, and nothing was done, if sum is NULL or somebody else holds it. */
lm_status lm_sum_part_gradient(const lm_node *n, lm_tensor *sum, lm_tensor *g, bool *added);
/* Sums *g to the sizes of meta, converts it to its dtype and moves it to its device. Replaces the caller's *g. */
lm_status lm_fit_gradient(const lm_meta *meta, lm_tensor **g);
/* Returns a new reference to the leaf's grad_buffer if the next gradient may be computed in it, else NULL. */
lm_tensor *lm_leaf_grad_buffer(const lm_node *leaf);
/* Adds g to the leaf's .grad; takes over g. */
lm_status lm_leaf_accumulate(lm_node *leaf, lm_tensor *g, bool create_graph);
/* Adds a copy of g to the .grad that retain_grad keeps. */
lm_status lm_watch_keep(lm_watch *w, lm_tensor *g, bool create_graph);

/* Run hooks (tensor_grad_and_hooks.c): lm_watch_before's may replace the caller's *g; lm_watch_after's read .grad. */
lm_status lm_watch_before(lm_watch *w, const lm_meta *meta, lm_tensor **g);
lm_status lm_watch_after(lm_watch *w);
/* Calls `begin` of the hooks that have one, before a pass; w may be NULL. */
lm_status lm_watch_begin(lm_watch *w, bool create_graph);
bool lm_watch_has_hooks(lm_watch *w); /* w may be NULL */
/* Returns t's watch (borrowed), created if missing and attached to t's node. LM_E_ARG if t does not require grad. */
lm_status lm_watch_need(lm_tensor *t, lm_watch **out);

/* Fails if one of gin[nedge] is NaN (anomaly.c); g: the gradients of the results. */
lm_status lm_anomaly_check(const lm_node *n, lm_tensor *const *g, lm_tensor *const *gin);
/* Appends the node's line, if known, to the message of an error. */
lm_status lm_anomaly_words(const lm_node *n, lm_status status);
