/* Declares what plan.c and join.c share. */
#pragma once

#include "plan/passes.h"
#include "plan/plan.h"

typedef struct lm_plan_output {
  int same;            /* index of the input that it is, or ~index of the output that it is; NONE: neither */
  int base;            /* likewise, of the tensor that it is a view of */
  int value;           /* of the segment */
  lm_tensor *constant; /* retained; NULL: a step makes it */
  bool is_copied;      /* true for a constant that calls return copies of, since the function makes it each time */
} lm_plan_output;

/* A batch norm that was folded into a weight; the tensors are constants of the plan. */
typedef struct lm_plan_fold {
  lm_tensor *from[6]; /* weight, bias, running_mean, running_var, weight and bias of the norm, or NULL */
  double eps;
  lm_tensor *folded[2]; /* weight, bias */
} lm_plan_fold;

struct lm_plan {
  lm_segment *g; /* its first instances are the inputs */
  int ninputs, noutputs, nfolds;
  size_t fold_capacity;
  lm_plan_output *output;
  lm_plan_fold *fold;
};

/* Joins convolutions and linear layers with those that follow them. like: a plan whose folded weights are taken where
 * they were made of the same tensors, or NULL. */
lm_status lm_plan_join(lm_plan *p, const lm_plan *like);
