/* Declares a plan's steps and values, which plan.c runs and join.c rewrites. */
#pragma once

#include "op/elementwise_chain.h"
#include "plan/plan.h"

typedef struct lm_plan_value {
  lm_tensor *t; /* a constant, or the value while a call runs; retained */
  bool is_constant, is_output;
  bool is_copied;        /* true for a constant that calls return copies of, since the function makes it each time */
  lm_storage *prepacked; /* storage of a constant, which keeps what kernels pack of it; or NULL */
  int last_use;          /* index of the last step that reads it; -1: none */
  uint8_t ndim;          /* ndim, size and dtype in the recording */
  lm_dtype dtype;
  int64_t size[LM_MAX_DIMS];
} lm_plan_value;

typedef struct lm_plan_step {
  lm_op_id op;
  bool in_place, is_removed;
  bool is_chained;  /* true for one of several elementwise steps in a row */
  lm_autocast cast; /* the mode in which it runs */
  int nin, nout;
  void *args;           /* the op's argument struct; its list's array is the step's, its tensors are borrowed */
  int *in;              /* indices of values, in the order of lm_each_tensor_slot; -1: NULL */
  int out[LM_MAX_OUTS]; /* indices of values; -1: NULL */
} lm_plan_step;

/* A tensor from outside that the plan has read, and its state then. */
typedef struct lm_plan_source {
  lm_tensor *t;       /* retained */
  lm_tensor *as_read; /* another header over its memory then, which stays allocated, so that no other has its address */
  uint32_t version;
} lm_plan_source;

/* A batch norm that was folded into a weight; the tensors are values of the plan. */
typedef struct lm_plan_fold {
  lm_tensor *from[6]; /* weight, bias, running_mean, running_var, weight and bias of the norm, or NULL */
  double eps;
  lm_tensor *folded[2]; /* weight, bias */
} lm_plan_fold;

struct lm_plan {
  lm_chain *chain; /* defers the steps that are chained; NULL if none is */
  int ninputs, noutputs, nvalues, nsteps, nsources, nfolds;
  size_t value_capacity, source_capacity, fold_capacity;
  int *output; /* indices of values; inputs are values 0 .. ninputs - 1 */
  lm_plan_value *value;
  lm_plan_step *step;
  lm_plan_source *source;
  lm_plan_fold *fold;
};

/* Joins convolutions and linear layers with those that follow them. like: a plan whose folded weights are taken where
 * they were made of the same tensors, or NULL. */
lm_status lm_plan_join(lm_plan *p, const lm_plan *like);
