/* What a call leaves for backward: a node where one of its inputs wants a gradient. */
#ifndef LM_AUTOGRAD_RECORD_GRAPH_H
#define LM_AUTOGRAD_RECORD_GRAPH_H

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

/* The op itself, its hidden results thrown away. */
lm_status lm_run_unrecorded(lm_op_id id, const void *args, bool in_place, lm_tensor **out);
/* If a gradient is requested: the op with a node, or as its formula, if that is what is recorded. Else nothing is done.
 */
lm_status lm_record_call(lm_op_id id, const void *args, bool *recorded, lm_tensor **out);
/* An op that writes into its first tensor, or one in place. */
lm_status lm_record_write(lm_op_id id, const void *args, bool in_place, lm_tensor **out);

#endif
