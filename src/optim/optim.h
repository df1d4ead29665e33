/* Optimizer steps: all parameters of a group in one call. What an optimizer computes is written from its entry
 * (lua/luminary/optim/sgd_adam_rules.lua) by generate.lua; here is what holds for all of them. */
#pragma once

#include "op/backend.h"
#include "optim_entries.h"

/* An entry, as the core and the binding ask for it. Modes are numbered as bits; `needs` and `when` are such, or 0. */
typedef struct lm_optimizer {
  const char *name;
  int family;  /* LM_OPTIM_…: whose arithmetic it is */
  bool counts; /* its coefficients differ from step to step */
  int n_options, n_modes, n_states, n_carried;
  struct {
    const char *name;
    double value; /* the default */
    bool fixed;   /* always that */
  } option[LM_OPTIM_OPTIONS];
  struct {
    int option; /* which the mode follows: on where it is not 0 */
    unsigned needs;
  } mode[LM_OPTIM_OPTIONS];
  struct {
    const char *name;
    unsigned when;
  } state[LM_OPTIM_STATES];
  const char *carried[LM_OPTIM_CARRIED];
} lm_optimizer;

extern LM_API const lm_optimizer lm_optimizers[];
extern LM_API const int lm_optimizer_count;
/* NULL if there is none of that name. */
LM_API const lm_optimizer *lm_optimizer_of(const char *name);

/* The modes that are on with these options, as bits, and whether state k is there with them. */
LM_API unsigned lm_optimizer_modes(const lm_optimizer *o, const double *option);
LM_API bool lm_optimizer_has(const lm_optimizer *o, unsigned modes, int k);

/* Parallel arrays of n tensors: parameter, gradient, and those states that are there. All of one parameter share sizes,
 * dtype and device; states are dense in the parameter's layout. */
typedef struct lm_optim_step {
  const lm_optimizer *optimizer;
  int n;
  lm_tensor *const *param, *const *grad;
  lm_tensor *const *state[LM_OPTIM_STATES]; /* NULL where there is none */
  lm_optim_numbers numbers;
  /* Filled in by lm_optim_run, for backends. */
  unsigned modes;
  const lm_optim_f64 *coefficients;
} lm_optim_step;

/* While a step is captured for replay (device/stream.h): n numbers in device memory that last from replay to replay.
 * `keep` returns the next few, of which `first` is what they are before the first replay: a step's number, and what it
 * carries. NULL once there are no more. Per thread. */
LM_API void lm_optim_set_kept(double *kept, double *first, int n);
LM_API bool lm_optim_keeps(void);
LM_API double *lm_optim_keep(const double *first, int n);
LM_API int lm_optim_kept_at(void); /* which of the n the last ones begin with */

/* Checks, splits by device, runs the backend's kernel, counts one in-place write a parameter. next: the carried
 * numbers after it. */
LM_API lm_status lm_optim_run(const lm_optim_step *step, double *next);
/* The norm of order p (which may be infinity) of all elements together. *total: 0-d float64 on the first one's device,
 * which nothing has waited for; 0 on the CPU if n is 0. of_grads: they are to be scaled, which is checked too. */
LM_API lm_status lm_total_norm(int n, lm_tensor *const *list, bool of_grads, double p, lm_tensor **total);
/* Scales the gradients in place so that a norm of `total`, 0-d, becomes at most max_norm. */
LM_API lm_status lm_clip_with_norm(int n, lm_tensor *const *grads, double max_norm, lm_tensor *total);
/* Limits each element of the gradients to [-most, most], in place. */
LM_API lm_status lm_clip_value(int n, lm_tensor *const *grads, double most);
