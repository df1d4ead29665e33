/* What oneDNN does not survive by itself: signals during its products, and too little memory where it makes
 * machine code. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "base/status.h"

/* Around calls of oneDNN, on the thread that calls. */
typedef struct lm_dnn_guard {
  int threads; /* OpenMP's on this thread, which belong to the process */
  bool has_stack;
  sigset_t before;
  stack_t stack_before;
  void *stack; /* of handlers of faults, which cannot be blocked; NULL where no handler is */
} lm_dnn_guard;
void lm_dnn_guard_begin(lm_dnn_guard *guard);
void lm_dnn_guard_end(lm_dnn_guard *guard);

/* Before machine code is made: LM_E_OOM unless there is room for it. oneDNN throws where nobody can catch. */
lm_status lm_dnn_guard_scratch(void);
