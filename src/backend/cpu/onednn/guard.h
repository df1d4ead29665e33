/* Guards oneDNN against signals during its products, and against too little memory for its machine code. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "base/status.h"

/* The state of a guard around calls of oneDNN, on the calling thread. */
typedef struct lm_dnn_guard {
  int threads; /* OpenMP's number before, which belongs to the process */
  bool has_stack;
  sigset_t before;
  stack_t stack_before;
  void *stack; /* stack for handlers of faults, which cannot be blocked; NULL if there is no handler */
} lm_dnn_guard;
void lm_dnn_guard_begin(lm_dnn_guard *guard);
void lm_dnn_guard_end(lm_dnn_guard *guard);
/* Guards the calls of oneDNN from here to the end of the block. */
#define LM_DNN_GUARD(name)                                            \
  lm_dnn_guard name __attribute__((cleanup(lm_dnn_guard_end))) = {0}; \
  lm_dnn_guard_begin(&name)

/* Returns LM_E_OOM unless there is room for machine code, before it is made: oneDNN throws where nobody can catch. */
lm_status lm_dnn_guard_scratch(void);
