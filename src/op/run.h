/* What op_entries.c puts into the descriptors of whole kinds of ops. */
#ifndef LM_OP_RUN_H
#define LM_OP_RUN_H

#include "op/op.h"

/* Elementwise ops; `into` may be NULL. */
lm_status lm_run_point(lm_op_id id, const void *args, lm_tensor *into, lm_tensor **out);
/* Ops that write into their first tensor, by fn. */
lm_status lm_run_write(lm_op_id id, const void *args, lm_op_fn fn, lm_tensor **out);

#endif
