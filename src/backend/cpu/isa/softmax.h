/* Declares softmax, its logarithm and their gradients over contiguous numbers: float, double, and bfloat16 in rows. */
#pragma once

#include "backend/cpu/isa.h"
#include "reduce_kinds.h"
#include "tensor/dtype.h"

enum { LM_SOFTMAX_STRIP = 512 };

struct lm_softmax_loops { /* y: NULL except for gradients. out may be x. */
  /* work: float [n] for bfloat16, else NULL */
  void (*row[LM_SOFTMAX_KINDS])(void *out, const void *x, const void *y, int64_t n, void *work);
  /* Sets stats to the largest number and the sum of e^(x - largest). Returns the sum of weight[i] (x[i] - largest), or
   * 0 unless `spread`; weight has the compute type, NULL: ones. */
  double (*stats)(const void *x, int64_t n, const void *weight, bool spread, void *work, double *stats);
  /* Computes e^(x - largest) scale - weight[i] spread. */
  void (*shares)(void *out, const void *x, int64_t n, double largest, double scale, const void *weight, double spread);
  /* Compute each column of [rows, cols] as a row; cols is at most LM_SOFTMAX_STRIP. */
  void (*cols[LM_SOFTMAX_KINDS])(void *out, const void *x, const void *y, int64_t rows, int cols);
};

LM_ISA_DECLARE(struct lm_softmax_loops, lm_softmax_F32);
LM_ISA_DECLARE(struct lm_softmax_loops, lm_softmax_F64);
LM_ISA_DECLARE(struct lm_softmax_loops, lm_softmax_BF16);

static inline const struct lm_softmax_loops *lm_softmax_loops_of(lm_dtype dtype) {
  return dtype == LM_F64    ? LM_ISA_PICK(lm_softmax_F64)
         : dtype == LM_BF16 ? LM_ISA_PICK(lm_softmax_BF16)
                            : LM_ISA_PICK(lm_softmax_F32);
}
