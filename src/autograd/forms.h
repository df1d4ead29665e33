/* Calls that what they were given makes into calls of other ops: by an option (div's rounding_mode), by an argument
 * that is left out (clamp's min) or of another kind (linear's weight of one dim). */
#ifndef LM_AUTOGRAD_FORMS_H
#define LM_AUTOGRAD_FORMS_H

#include "autograd/autograd.h"

/* Of an op that has such forms at all (lm_op.forms): runs the call as other ops and says so; else `taken` is false, and
 * the call is the op's own. */
lm_status lm_run_form(lm_op_id op, const void *args, bool in_place, bool *taken, lm_tensor **out);

#endif
