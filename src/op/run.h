/* Running an op: by its kind, as op_entries.c puts it into descriptors, and on its device. */
#pragma once

#include "op/backend.h"
#include "op/op.h"

/* Elementwise ops; `into` may be NULL. */
lm_status lm_run_pointwise(lm_op_id id, const void *args, lm_tensor *into, lm_tensor **out);
/* Ops that write into their first tensor, by fn. */
lm_status lm_run_write(lm_op_id id, const void *args, lm_op_fn fn, lm_tensor **out);

/* What messages call an op, or a family: that is the op that runs. */
const char *lm_slot_name(lm_op_id op);
/* Calls the device's slot of an op or a family, or says that the op has no kernel there. */
lm_status lm_dispatch(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out);
/* The same, but an op that has no kernel on the device, or one that says LM_E_MISSING before it wrote anything, is
 * computed by the CPU, on copies: what factorizes matrices and transforms signals. The results have sizes and layout
 * already. */
lm_status lm_dispatch_or_host(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out);
/* Elementwise, any kernel id (LM_OP_* or LM_GRAD_*): broadcasts, promotes, allocates; `into` writes
 * there instead. The dtype of LM_GRAD_* results is that of in[0]. */
lm_status lm_pointwise_run(int kernel, int nin, lm_tensor *const *in, const double *numbers, lm_tensor *into,
                           lm_tensor **out);

/* Which op runs on this thread, for messages of what lies below. */
typedef struct lm_running {
  const char *name;  /* NULL: none */
  int op;            /* -1: it is not one of ops.lua's */
  bool only_visible; /* nobody wants the hidden results: they may be NULL */
} lm_running;
extern _Thread_local lm_running lm_now_running;

static inline lm_running lm_run_begin(const char *name, int op) {
  lm_running before = lm_now_running;
  lm_now_running = (lm_running){name, op, false};
  return before;
}
static inline void lm_run_end(lm_running before) { lm_now_running = before; }
