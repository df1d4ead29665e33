/* Runs ops: by kind, for the descriptors in op_entries.c, and by device. */
#pragma once

#include "op/kernels.h"
#include "op/op.h"

/* Runs an elementwise op; `into` (may be NULL) receives the result. */
lm_status lm_run_pointwise(lm_op_id id, const void *args, lm_tensor *into, lm_tensor **out);
/* Runs by fn an op that writes into its first tensor. */
lm_status lm_run_write(lm_op_id id, const void *args, lm_op_fn fn, lm_tensor **out);

/* Returns the name of an op for messages; for a family, that of the op that runs. */
const char *lm_slot_name(lm_op_id op);
/* Calls the device's kernel of an op or a family; LM_E_MISSING if it has none. */
lm_status lm_dispatch(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out);
/* Calls the kernel, but computes on the CPU, on copies, if the device has no kernel or its kernel returned LM_E_MISSING
 * before writing: for factorizations and signal transforms. The results have sizes and layout already. */
lm_status lm_dispatch_or_host(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out);
/* Runs an elementwise kernel (LM_OP_* or LM_GRAD_*): broadcasts, promotes and allocates, or writes to `into` if not
 * NULL. The dtype of LM_GRAD_* results is that of in[0]. */
lm_status lm_pointwise_run(int kernel, int nin, lm_tensor *const *in, const double *numbers, lm_tensor *into,
                           lm_tensor **out);

/* Chooses the dtypes of an elementwise kernel's arithmetic and result, by PyTorch's rules and errors. */
lm_status lm_pointwise_dtypes(int kernel, int nin, lm_tensor *const *in, const double *number, lm_dtype *compute,
                              lm_dtype *result);

/* The op that runs on this thread, for messages of lower layers. */
typedef struct lm_running {
  const char *name;  /* NULL: none */
  int op;            /* -1: not an op of ops.lua */
  bool only_visible; /* true if auxiliary results may be NULL, as the caller drops them */
} lm_running;
extern _Thread_local lm_running lm_now_running;

static inline lm_running lm_run_begin(const char *name, int op) {
  lm_running before = lm_now_running;
  lm_now_running = (lm_running){name, op, false};
  return before;
}
static inline void lm_run_end(lm_running before) { lm_now_running = before; }
/* Declares what ran before, which runs again when the block ends: LM_RUNNING before = lm_run_begin(name, op). */
#define LM_RUNNING __attribute__((cleanup(lm_run_drop), unused)) lm_running
static inline void lm_run_drop(lm_running *before) { lm_run_end(*before); }
