/* Declares plans: the steps of a tape, prepared once and run again for other inputs of the same dtypes and shapes,
 * without recording for gradients. Steps that depend on no input are computed once, convolutions take the layers that
 * follow them (join.c), and a tensor is released after its last use, so that the next results use its memory. */
#pragma once

#include "autograd/tape.h"

typedef struct lm_plan lm_plan;

/* Creates a plan that returns these tensors of the tape. like: a plan of the same function for other shapes, with which
 * it shares weights, or NULL. LM_E_STATE, with a sentence, if the steps do not stand for the function. */
LM_API lm_status lm_plan_new(const lm_tape *tape, int noutputs, lm_tensor *const *outputs, const lm_plan *like,
                             lm_plan **out);
LM_API void lm_plan_free(lm_plan *plan); /* plan may be NULL */
/* Runs the plan; out: room for its outputs, new references. LM_E_STATE if a result has another shape than in the
 * recording, since it depends on values: then nothing outside of the plan has changed. */
LM_API lm_status lm_plan_run(lm_plan *plan, lm_tensor *const *inputs, lm_tensor **out);
/* Returns true unless a tensor that the plan reads beside its inputs has been changed since. */
LM_API bool lm_plan_is_current(const lm_plan *plan);
LM_API int lm_plan_ninputs(const lm_plan *plan);
LM_API int lm_plan_noutputs(const lm_plan *plan);
LM_API int lm_plan_nsteps(const lm_plan *plan);
LM_API const char *lm_plan_op_name(const lm_plan *plan, int step); /* NULL for a step that was removed */
/* Returns true for an elementwise step that is computed together with those beside it. */
LM_API bool lm_plan_is_chained(const lm_plan *plan, int step);
