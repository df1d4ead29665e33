/* Declares how op calls are recorded: a node if an input requires grad. */
#pragma once

#include "autograd/gradient_rules.h"

static inline const lm_list *lm_record_list(const lm_op *op, const void *args) {
  return (const lm_list *)((const char *)args + op->list);
}

/* Tests quickly: returns false if no input can require grad. */
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

/* Returns t's current history (borrowed; node NULL if it does not require grad). A view of a base that was written
 * since gets a new one. */
lm_status lm_history_slow(lm_tensor *t, lm_edge *out);
static inline lm_status lm_history(lm_tensor *t, lm_edge *out) {
  if (t && t->grad) return lm_history_slow(t, out);
  *out = (lm_edge){NULL, 0};
  return LM_OK;
}

/* Records that v is a view of x (view_and_inplace.c); takes over `spare`, an empty record, unless NULL. */
lm_status lm_view_track(lm_tensor *v, lm_tensor *x, lm_grad *spare);
/* Returns the view of x at `memory`, a position within x's memory; recorded as one at `geometry`, the same position
 * within x's gradient. LM_E_ARG if it reaches outside x's storage. */
lm_status lm_view_at(lm_tensor *x, const lm_view_geometry *memory, const lm_view_geometry *geometry, lm_tensor **out);
void lm_view_geometry_of(const lm_tensor *view, const lm_tensor *base, lm_view_geometry *out);
/* Creates a node: EXTRACT reads the part at `geometry` of edge `first`; EMBED puts `first` into zeros there; OVERWRITE
 * is the base `first` after `second` has written the part. meta: describes its result. */
lm_status lm_geometry_node(lm_node_kind kind, const lm_view_geometry *geometry, const lm_meta *meta, lm_edge first,
                           lm_edge second, lm_node **out);

/* Reserves room for a node before it is recorded (recompute.c), so that lm_recompute_add_node cannot fail. */
lm_status lm_recompute_reserve(void);
/* Adds a completed node of an op or a user's function to the current part and to a running recomputation. */
void lm_recompute_add_node(lm_node *n);
/* Computes the saved tensors of a needs_recompute node again. Runs the user's code, on the backward pass's thread. */
lm_status lm_recompute_run(lm_node *n);

/* Runs the op without recording (record_graph.c); releases its hidden results. */
lm_status lm_run_unrecorded(lm_op_id id, const void *args, bool in_place, lm_tensor **out);
/* Runs the op with a node, or as its recorded composite, if an input requires grad. Else only sets *recorded to
 * false. */
lm_status lm_record_call(lm_op_id id, const void *args, bool *recorded, lm_tensor **out);
/* Records an op that saves no tensors and whose only result, `result`, was computed elsewhere. */
lm_status lm_record_made(lm_op_id id, const void *args, lm_tensor *result);
/* Runs and records an op that writes into its first tensor, or one in place. */
lm_status lm_record_write(lm_op_id id, const void *args, bool in_place, lm_tensor **out);

/* autocast.c. An op's arguments, cast as the op's entry says, with references to the tensors. */
typedef struct lm_cast_args {
  lm_args_union args;
  lm_autocast before; /* the mode that lm_autocast_args_free restores */
  lm_tensor *tensor[LM_MAX_TENSOR_ARGS], **list;
  int nlist;
} lm_cast_args;
/* Returns the dtype of the results of an op that computes half-precision tensors among these arguments in float32;
 * LM_NO_DTYPE if it computes them as they are. */
lm_dtype lm_widened_dtype(lm_op_id op, const void *args);
/* Makes this thread's ops read half precision and return float32; returns the mode to set afterwards. */
enum { LM_WIDENS = 1 << LM_DEVICE_KINDS }; /* a bit of lm_autocast.on beside those of device kinds */
lm_autocast lm_widen_begin(void);
/* Casts the arguments by `rule`, and turns autocast off for the ops that the op calls. The caller calls
 * lm_autocast_args_free, also after an error. */
lm_status lm_autocast_args(lm_op_id op, const void *args, lm_cast_rule rule, lm_cast_args *c);
void lm_autocast_args_free(lm_cast_args *c);
