/* Declares the receiver of the ops that run on a thread: of a step that is recorded (plan/). */
#pragma once

#include "op/op.h"

struct lm_node;

typedef enum lm_run_form { LM_RUN_ALL, LM_RUN_VISIBLE, LM_RUN_IN_PLACE } lm_run_form;

typedef struct lm_op_recorder {
  /* An op ran as lm_op_run, lm_op_run_visible or lm_op_run_inplace run it. Ops within it are left out. */
  void (*op)(struct lm_op_recorder *r, lm_op_id id, const void *args, lm_run_form form, lm_tensor *const *out);
  /* An elementwise kernel of a gradient ran. */
  void (*pointwise)(struct lm_op_recorder *r, int kernel, int nin, lm_tensor *const *in, const double *numbers,
                    lm_tensor *out);
  /* Backward has computed a leaf's gradient (NULL: none); true if what becomes of it is not recorded. */
  bool (*leaf)(struct lm_op_recorder *r, const struct lm_node *leaf, lm_tensor *g);
} lm_op_recorder;
extern _Thread_local lm_op_recorder *lm_ops_recorded;

/* Returns the receiver, and none for what runs until lm_recorder_end. */
static inline lm_op_recorder *lm_recorder_begin(void) {
  lm_op_recorder *r = lm_compiled_call_runs() ? lm_ops_recorded : NULL;
  if (r) lm_ops_recorded = NULL;
  return r;
}
static inline void lm_recorder_end(lm_op_recorder *r) {
  if (__builtin_expect(r != NULL, 0)) lm_ops_recorded = r;
}
