/* Optimizers' inner loops over n elements of one parameter, by the parameter's dtype. */
#ifndef LM_CPU_ISA_OPTIM_H
#define LM_CPU_ISA_OPTIM_H

#include "backend/cpu/isa.h"
#include "optim_update.h"
#include "tensor/dtype.h"

/* The coefficients in both precisions, and which form of the update is wanted. */
typedef struct lm_sgd_plan {
  lm_sgd_f32 f32;
  lm_sgd_f64 f64;
  bool decay;
  int mode;
} lm_sgd_plan;

typedef struct lm_adam_plan {
  lm_adam_f32 f32;
  lm_adam_f64 f64;
  int decay;
  bool amsgrad;
} lm_adam_plan;

struct lm_optim_loops {
  /* NULL for dtypes that are not floating. m, and largest, may be NULL where the plan does not use them. */
  void (*sgd[LM_DTYPE_COUNT])(const lm_sgd_plan *plan, int64_t n, void *p, const void *g, void *m);
  void (*adam[LM_DTYPE_COUNT])(const lm_adam_plan *plan, int64_t n, void *p, const void *g, void *m, void *v,
                               void *largest);
  /* Over |x|, in double. The largest is NaN if one is. */
  double (*sum_abs[LM_DTYPE_COUNT])(int64_t n, const void *x);
  double (*sum_squares[LM_DTYPE_COUNT])(int64_t n, const void *x);
  double (*sum_powers[LM_DTYPE_COUNT])(int64_t n, const void *x, double power);
  double (*largest_abs[LM_DTYPE_COUNT])(int64_t n, const void *x);
};
LM_ISA_DECLARE(struct lm_optim_loops, lm_optim_loops);

#endif
