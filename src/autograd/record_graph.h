/* What a call leaves for backward: a node where one of its inputs wants a gradient. */
#pragma once

#include "autograd/gradient_rules.h"

static inline const lm_list *lm_record_list(const lm_op *op, const void *args) {
  return (const lm_list *)((const char *)args + op->list);
}

/* Quick: false means that no input can want a gradient. */
static inline bool lm_record_may(const lm_op *op, const lm_rules *rules, const void *args) {
  for (int k = 0; k < op->ntensor; k++) {
    const lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[k]);
    if (t && t->grad) return true;
  }
  if (rules->each) {
    const lm_list *list = lm_record_list(op, args);
    for (int i = 0; i < list->n; i++) {
      if (list->v[i] && list->v[i]->grad) return true;
    }
  }
  return false;
}

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
/* A node of that kind, for the part at `geometry` of what `first` leads to: it reads the part out (EXTRACT), or stands
 * for a base once `second` has written it (OVERWRITE). meta: of its result. */
lm_status lm_geometry_node(lm_node_kind kind, const lm_view_geometry *geometry, const lm_meta *meta, lm_edge first,
                           lm_edge second, lm_node **out);

/* recompute.c. Before a node is recorded, so that noting it cannot fail. */
lm_status lm_recompute_reserve(void);
/* A node of an op or a user's function is complete. */
void lm_recompute_add_node(lm_node *n);
/* Has what a hollow node saves computed again. Runs the user's code: on the thread of the backward pass. */
lm_status lm_recompute_run(lm_node *n);

/* record_graph.c. The op itself, its hidden results thrown away. */
lm_status lm_run_unrecorded(lm_op_id id, const void *args, bool in_place, lm_tensor **out);
/* If a gradient is requested: the op with a node, or as its formula, if that is what is recorded. Else nothing is done.
 */
lm_status lm_record_call(lm_op_id id, const void *args, bool *recorded, lm_tensor **out);
/* The op, where it saves nothing, of which `result` is the one result, computed elsewhere. */
lm_status lm_record_made(lm_op_id id, const void *args, lm_tensor *result);
/* An op that writes into its first tensor, or one in place. */
lm_status lm_record_write(lm_op_id id, const void *args, bool in_place, lm_tensor **out);

/* call_op.c. lm_call without autocast for the op itself. */
lm_status lm_call_as_is(lm_op_id op, const void *args, lm_tensor **out);
