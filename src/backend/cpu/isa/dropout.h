#ifndef LM_CPU_ISA_DROPOUT_H
#define LM_CPU_ISA_DROPOUT_H

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"
#include "tensor/generator.h"

/* Elements from .. to - 1 of a draw (from: a multiple of 4): keep[i] is whether the upper 24 bits of
 * its random word reach `threshold`, y[i] is x[i] * scale or 0. */
struct lm_dropout_loops {
  void (*of[LM_DTYPE_COUNT])(const void *x, void *y, uint8_t *keep, int64_t from, int64_t to, lm_draw draw,
                             uint32_t threshold, double scale);
};
LM_ISA_DECLARE(struct lm_dropout_loops, lm_dropout_loops);

#endif
