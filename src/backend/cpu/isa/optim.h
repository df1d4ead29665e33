/* Declares inner loops over n elements of one tensor, by its dtype: optimizers' steps, norms, scaling. */
#pragma once

#include "backend/cpu/isa.h"
#include "optim_entries.h"
#include "tensor/dtype.h"

/* A step's numbers in both precisions, and its modes. */
typedef struct lm_optim_coefficients {
  unsigned modes;
  lm_optim_f32 f32;
  lm_optim_f64 f64;
} lm_optim_coefficients;

/* Updates p by g and the states; state[k] is NULL if the modes have none. */
typedef void lm_optim_loop(const lm_optim_coefficients *c, int64_t n, void *p, const void *g, void *const *state);

struct lm_optim_loops {
  /* NULL for dtypes that are not floating. */
  lm_optim_loop *update[LM_OPTIM_FAMILIES][LM_DTYPE_COUNT];
  /* Return sums over |x|, or the largest, in double. The largest is NaN if one is. */
  double (*sum_abs[LM_DTYPE_COUNT])(int64_t n, const void *x);
  double (*sum_squares[LM_DTYPE_COUNT])(int64_t n, const void *x);
  double (*sum_powers[LM_DTYPE_COUNT])(int64_t n, const void *x, double power);
  double (*largest_abs[LM_DTYPE_COUNT])(int64_t n, const void *x);
  /* Computes y[i] = x[i] * factor, and returns true if some x[i] is infinite or NaN. y may be x. */
  bool (*rescale[LM_DTYPE_COUNT])(int64_t n, const void *x, void *y, double factor);
};
LM_ISA_DECLARE(struct lm_optim_loops, lm_optim_loops);
