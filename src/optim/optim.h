/* Optimizer steps: all parameters of a group in one call; formulas as PyTorch documents them. */
#ifndef LM_OPTIM_OPTIM_H
#define LM_OPTIM_OPTIM_H

#include "op/backend.h"

typedef enum lm_optim_kind { LM_SGD, LM_ADAM } lm_optim_kind;

/* Parallel arrays of n tensors: parameter, gradient, and state (SGD: state0 momentum buffer, absent
 * without momentum; Adam: state0 exp_avg, state1 exp_avg_sq, state2 max_exp_avg_sq with amsgrad).
 * All of one parameter share sizes, dtype and device; states are dense in the parameter's layout. */
typedef struct lm_optim_step {
  lm_optim_kind kind;
  int n;
  lm_tensor *const *param, *const *grad;
  lm_tensor *const *state0, *const *state1, *const *state2;
  double lr, weight_decay;
  bool maximize;
  /* SGD */
  double momentum, dampening;
  bool nesterov, first; /* first: the momentum buffer becomes the gradient */
  /* Adam; AdamW when decoupled */
  double beta1, beta2, eps;
  int64_t step; /* from 1 */
  bool amsgrad, decoupled;
} lm_optim_step;

/* While a step is captured for replay (device/stream.h): the address in device memory of how often it was replayed
 * before, which captured kernels add to `step`. NULL otherwise. Per thread. */
LM_API void lm_optim_set_replayed(const int64_t *replayed);
LM_API const int64_t *lm_optim_replayed(void);

/* Checks, splits by device, runs the backend's kernel, counts one in-place write a parameter. */
LM_API lm_status lm_optim_run(const lm_optim_step *step);
/* The norm of order p (which may be infinity) of all elements together. *total: 0-d float64 on the first one's device,
 * which nothing has waited for; 0 on the CPU if n is 0. of_grads: they are to be scaled, which is checked too. */
LM_API lm_status lm_total_norm(int n, lm_tensor *const *list, bool of_grads, double p, lm_tensor **total);
/* Scales the gradients in place so that a norm of `total`, 0-d, becomes at most max_norm. */
LM_API lm_status lm_clip_with_norm(int n, lm_tensor *const *grads, double max_norm, lm_tensor *total);
/* Limits each element of the gradients to [-most, most], in place. */
LM_API lm_status lm_clip_value(int n, lm_tensor *const *grads, double most);

#endif
