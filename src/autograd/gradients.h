/* Gradients on their way through the graph. They are made of calls of ops: nothing that records looks here. */
#pragma once

#include "autograd/node.h"

/* view_gradients.c. Gradients of EXTRACT, EMBED and OVERWRITE nodes: gin as lm_custom_fn's. */
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
/* t's, made if it has none, and seen by the node that made t. LM_E_STATE if t wants no gradient. */
lm_status lm_watch_need(lm_tensor *t, lm_watch **out);

/* anomaly.c. An error if one of gin[nedge] is NaN; g: the gradients of the results. */
lm_status lm_anomaly_check(const lm_node *n, lm_tensor *const *g, lm_tensor *const *gin);
/* Adds the node's line, if it is known, to the message of an error. */
lm_status lm_anomaly_words(const lm_node *n, lm_status status);
