#ifndef LM_CPU_ISA_RESCALE_H
#define LM_CPU_ISA_RESCALE_H

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* y[i] = x[i] * factor over n elements, by the dtypes of x and y; whether some x[i] is infinite or NaN. y may be x. */
struct lm_rescale_loops {
  bool (*of[LM_DTYPE_COUNT][LM_DTYPE_COUNT])(int64_t n, const void *x, void *y, double factor);
};
LM_ISA_DECLARE(struct lm_rescale_loops, lm_rescale_loops);

#endif
