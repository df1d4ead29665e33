/* What oneDNN does not survive by itself: signals during its float32 products, and too little memory where it makes
 * machine code. */
#pragma once

#include "base/status.h"

/* Once, before anything else of oneDNN: signals do no harm from now on. */
void lm_dnn_guard_stack(void);
/* Before machine code is made: LM_E_OOM unless there is room for it. oneDNN throws, in threads of OpenMP's too, where
 * nobody can catch. */
lm_status lm_dnn_guard_scratch(void);
/* Before the first float32 product, which makes much of it. Costs one load afterwards. */
lm_status lm_dnn_guard_products(void);
