/* Declares the table of ops computed by other ops (op/entries/ops.lua), whose gradients are those ops' gradients. */
#pragma once

#include "op_calls.h"

typedef struct lm_composition {
  /* Checks preconditions of the arguments. */
  lm_status (*needs)(const void *args);
  /* Runs a call as other ops where its arguments allow that; otherwise sets `taken`, true before, to false. in_place:
   * the last of these ops writes into x. */
  lm_status (*form)(const void *args, bool in_place, bool *taken, lm_tensor **out);
  /* Computes the op by other ops: a composite, or the ops that are recorded for the gradient. */
  lm_status (*made_of)(const void *args, lm_tensor **out);
} lm_composition;

/* Members that an op lacks are NULL. */
extern const lm_composition lm_compositions[];
