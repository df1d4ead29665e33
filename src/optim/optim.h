/* Runs optimizer steps: all parameters of a group in one call. generate.lua writes each optimizer's arithmetic from its
 * entry (lua/luminary/optim/sgd_adam_rules.lua); this file declares the common part. */
#pragma once

#include "op/kernels.h"
#include "optim_entries.h"

/* Describes an optimizer for the core and the binding. Mode i is bit i; `needs` and `when` are sets of modes, or 0. */
typedef struct lm_optimizer {
  const char *name;
  int family;  /* LM_OPTIM_…: optimizers of a family share their arithmetic */
  bool counts; /* true if coefficients differ from step to step */
  int n_options, n_modes, n_states, n_carried;
  struct {
    const char *name;
    double value; /* default value */
    bool fixed;   /* true if users cannot change it */
  } option[LM_OPTIM_OPTIONS];
  struct {
    int option; /* option that turns the mode on by a value other than 0 */
    unsigned needs;
  } mode[LM_OPTIM_OPTIONS];
  struct {
    const char *name;
    unsigned when;
  } state[LM_OPTIM_STATES];
  const char *carried[LM_OPTIM_CARRIED];
} lm_optimizer;

extern const lm_optimizer lm_optimizers[];
extern const int lm_optimizer_count;
/* Returns the optimizer of that name, or NULL. */
LM_API const lm_optimizer *lm_optimizer_of(const char *name);

/* Return the modes that these options turn on, as bits, and whether state k exists in these modes. */
LM_API unsigned lm_optimizer_modes(const lm_optimizer *o, const double *option);
LM_API bool lm_optimizer_has(const lm_optimizer *o, unsigned modes, int k);

/* One step: parallel arrays of n tensors (parameter, gradient, existing states). All tensors of a parameter share
 * sizes, dtype and device; states are dense in the parameter's layout. */
typedef struct lm_optim_step {
  const lm_optimizer *optimizer;
  int n;
  lm_tensor *const *param, *const *grad;
  lm_tensor *const *state[LM_OPTIM_STATES]; /* NULL for a state that does not exist */
  lm_optim_numbers numbers;
  /* set by lm_optim_run, for backends */
  unsigned modes;
  const lm_optim_f64 *coefficients;
} lm_optim_step;

/* Set, while a graph is captured, n numbers in device memory that persist between replays (a step's number and carried
 * numbers). `take` returns the next of them, with values `first` before the first replay, or NULL if too few are left.
 * Per thread. */
LM_API void lm_optim_graph_numbers_set(double *numbers, double *first, int n);
LM_API bool lm_optim_in_graph(void);
LM_API double *lm_optim_graph_numbers_take(const double *first, int n);
LM_API int lm_optim_graph_numbers_at(void); /* index of the numbers that `take` returned last */

/* Returns in *out a new reference to t if it has the dtype, is dense and, with `like`, in its layout; else a copy that
 * is. The caller releases *out even if this fails. */
lm_status lm_optim_layout(lm_tensor *t, const lm_tensor *like, lm_dtype dtype, lm_tensor **out);

/* Checks the arguments, runs the kernel of each device's backend, and counts one in-place write per parameter. next:
 * the carried numbers after the step. */
LM_API lm_status lm_optim_run(const lm_optim_step *step, double *next);
/* Computes the norm of order p (may be infinity) of all elements together. *total: 0-d float64 on list[0]'s device,
 * without a host wait; 0 on the CPU if n is 0. of_grads: checks also that they can be scaled. */
LM_API lm_status lm_total_norm(int n, lm_tensor *const *list, bool of_grads, double p, lm_tensor **total);
/* Scales the gradients in place so that a norm of `total`, 0-d, becomes at most max_norm. */
LM_API lm_status lm_clip_with_norm(int n, lm_tensor *const *grads, double max_norm, lm_tensor *total);
/* Clamps each element of the gradients to [-most, most], in place. */
LM_API lm_status lm_clip_value(int n, lm_tensor *const *grads, double most);
/* Sets to[i] = from[i] * factor, rounded once. A pair shares sizes and device, dtypes are floating, to[i] may be
 * from[i]. *found: 0-d float32 on the first device, 1 if any value was not finite, else 0; the host has not waited for
 * it. Counts one in-place write per tensor. Messages begin with `name`. */
LM_API lm_status lm_rescale(const char *name, int n, lm_tensor *const *from, lm_tensor *const *to, double factor,
                            lm_tensor **found);
