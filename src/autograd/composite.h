/* Ops as other ops: what their entries in op/entries/ops.lua say besides a kernel. Gradients come with those ops'. */
#pragma once

#include "op_calls.h"

typedef struct lm_composition {
  /* What has to hold of the arguments. */
  lm_status (*needs)(const void *args);
  /* A call that options or arguments make into those of other ops is run as these; else `taken`, which is true before,
   * becomes false. in_place: the last of them writes into x. */
  lm_status (*form)(const void *args, bool in_place, bool *taken, lm_tensor **out);
  /* The whole op: a composite, or what is recorded where the gradient is of that. */
  lm_status (*made_of)(const void *args, lm_tensor **out);
} lm_composition;

/* NULL what an op has not. */
extern const lm_composition lm_compositions[LM_OP_COUNT];
