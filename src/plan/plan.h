/* Declares plans: segments without backward that stand for a function, prepared once and run again for other inputs of
 * the same dtypes and layouts, without a call of the function. Steps that depend on no input are computed once,
 * convolutions take the layers that follow them (join.c), and kernels keep what they pack of weights. */
#pragma once

#include "autograd/tape.h"
#include "plan/follow.h"

/* A function's ops: as it calls them, and the steps that run beneath. */
typedef struct lm_op_recording {
  lm_tape *tape, *outer; /* outer: what recorded before, or NULL */
  lm_compiled *steps;
} lm_op_recording;

/* Creates a recording of a function of these inputs, which is called with the headers in tape->input. */
LM_API lm_status lm_op_recording_new(int ninputs, lm_tensor *const *inputs, lm_op_recording **out);
LM_API void lm_op_recording_free(lm_op_recording *r); /* r may be NULL */
/* Records what this thread calls until lm_op_recording_end. */
LM_API lm_status lm_op_recording_begin(lm_op_recording *r);
LM_API void lm_op_recording_end(lm_op_recording *r);

typedef struct lm_plan lm_plan;

/* Makes a recording a plan that returns these tensors of it. like: a plan of the same function for other shapes, with
 * which it shares weights, or NULL. LM_E_STATE, with a sentence, if the steps do not stand for the function; LM_E_ARG,
 * with one, if that is since an argument has the memory of another tensor. */
LM_API lm_status lm_plan_new(lm_op_recording *r, int noutputs, lm_tensor *const *outputs, const lm_plan *like,
                             lm_plan **out);
LM_API void lm_plan_free(lm_plan *plan); /* plan may be NULL */
/* Runs the plan; out: room for its outputs, new references. LM_E_STATE if a result has another shape than in the
 * recording, since it depends on values: then nothing outside of the plan has changed. */
LM_API lm_status lm_plan_run(lm_plan *plan, lm_tensor *const *inputs, lm_tensor **out);
/* Returns true unless a tensor that the plan reads beside its inputs has been changed since. */
LM_API bool lm_plan_is_current(const lm_plan *plan);
LM_API int lm_plan_ninputs(const lm_plan *plan);
LM_API int lm_plan_noutputs(const lm_plan *plan);
/* Returns the name of a step's op, and in *joins whether it is computed with that before it; NULL: there are no more.
 */
LM_API const char *lm_plan_step_name(const lm_plan *plan, int step, bool *joins);
