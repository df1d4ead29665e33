/* Ops made of other ops: what ops.lua calls composite, and ops whose gradient it does. Their gradients come with those
 * ops'. */
#ifndef LM_AUTOGRAD_COMPOSITE_H
#define LM_AUTOGRAD_COMPOSITE_H

#include "op_calls.h"

typedef lm_status (*lm_composite_fn)(const void *args, lm_tensor **out);
/* NULL for other ops. */
lm_composite_fn lm_composite_of(lm_op_id op);

#endif
