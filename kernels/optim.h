/* Runs optimizer steps and norms of many tensors in few launches. All functions enqueue on the stream and return a
 * cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "c_linkage.h"
#include "optim_entries.h"
#include "tensor_table.h"

/* Parameters of one dtype, as lm_tensor_table, with their gradients and states. */
enum { LM_OPTIM_TENSORS = 64, LM_OPTIM_CHUNK = 4096 };

typedef struct lm_optim_table {
  int n;
  uint32_t first[LM_OPTIM_TENSORS + 1];
  int64_t numel[LM_OPTIM_TENSORS];
  void *param[LM_OPTIM_TENSORS], *state[LM_OPTIM_STATES][LM_OPTIM_TENSORS];
  const void *grad[LM_OPTIM_TENSORS];
} lm_optim_table;

/* A step: an optimizer's family, its modes, and bits of the states that exist. */
typedef struct lm_optim_call {
  int family;
  unsigned modes, states;
  lm_optim_f64 coefficients;
  const lm_optim_f64 *planned; /* device memory with coefficients to use instead, or NULL */
} lm_optim_call;

LM_C int lm_optim_update(int dtype, const lm_optim_table *table, const lm_optim_call *call, void *stream);
/* Sets *out to the coefficients of step carried[0], which uses the n carried numbers behind it; carried becomes the
 * next step's. Both are in device memory. */
LM_C int lm_optim_plan_replay(int family, const lm_optim_numbers *numbers, double *carried, int n, lm_optim_f64 *out,
                              void *stream);

/* Sets part[k] to the sum of |x|^p (p infinity: the largest |x|) of the k-th chunk of the table's `from`. */
LM_C int lm_optim_norms(int dtype, const lm_tensor_table *table, double p, double *part, void *stream);
/* Sets *out to the sum of n parts, which are sums of |x|^p; for p = inf to their largest. */
LM_C int lm_optim_norms_join(const double *part, int64_t n, double p, double *out, void *stream);
