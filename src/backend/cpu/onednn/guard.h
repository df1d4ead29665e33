/* What oneDNN does not survive by itself: signals during its float32 products, and too little memory where it makes
 * machine code. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "base/status.h"

/* Around calls of oneDNN, on the thread that calls. They nest: an outer one makes those within it cheap. */
typedef struct lm_dnn_guard {
  int threads; /* OpenMP's on this thread, which belong to the process; 0: an outer guard has them */
  bool blocks, has_stack;
  sigset_t before;
  stack_t stack_before;
  char stack[32 << 10]; /* of handlers of faults, which cannot be blocked */
} lm_dnn_guard;
/* deep: what runs may exchange the stack, as float32 products of many terms do. */
void lm_dnn_guard_begin(lm_dnn_guard *guard, bool deep);
void lm_dnn_guard_end(const lm_dnn_guard *guard);

/* Before machine code is made: LM_E_OOM unless there is room for it. oneDNN throws where nobody can catch. */
lm_status lm_dnn_guard_scratch(void);
/* Before the first float32 product, which makes much of it. Costs one load afterwards. */
lm_status lm_dnn_guard_products(void);
