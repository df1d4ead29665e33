/* Declares reductions of contiguous elements of a compute type (float, double, int64, and for extremes alone the
 * narrower integers), or of bfloat16 in float. int64 has SUM, PRODUCT, NONZERO, MAX and MIN, narrower ones MAX and MIN;
 * reductions that take two passes or return positions are made of the others. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"
#include "reduce_kinds.h"
#include "tensor/dtype.h"

/* Totals are int64 for integers, and double for floating compute types: float sums run over at most some thousand
 * elements, spread over many lanes, before they are added to one. */
typedef union lm_total {
  double f;
  int64_t i;
} lm_total;

enum { LM_REDUCE_COLS = 512 };

struct lm_reduce_loops {
  lm_total start[LM_REDUCE_KINDS]; /* totals of no elements */
  /* Fold rows of n contiguous elements, `step` elements apart, each into its total with its c: the parameter of the
   * fold's formula, or NULL. NULL where there is no such fold. */
  void (*rows[LM_REDUCE_KINDS])(lm_total *total, const void *x, int64_t step, int rows, int64_t n, const lm_total *c);
  /* Fold rows of cols (at most LM_REDUCE_COLS) elements, `step` elements apart: a total and a c for each column. */
  void (*cols[LM_REDUCE_KINDS])(lm_total *total, const void *x, int64_t step, int rows, int cols, const lm_total *c);
  void (*merge)(lm_reduce_kind fold, lm_total *total, const lm_total *part, int64_t n);
  /* Returns the first index, from 0, of an extreme in n elements (a NaN if it is NaN); n if there is none. */
  int64_t (*find)(const void *x, int64_t n, lm_total extreme);
  /* Updates each column's best so far, and the row it came from, with one more row: the first of equals stays. */
  void (*track)(void *best, int64_t *from, const void *x, int64_t row, int cols, bool largest);
};

LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_F32);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_F64);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_I64);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_BF16);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_U8);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_I8);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_I16);
LM_ISA_DECLARE(struct lm_reduce_loops, lm_reduce_I32);

static inline const struct lm_reduce_loops *lm_reduce_loops_of(lm_dtype dtype) {
  switch (dtype) {
    case LM_BF16: return LM_ISA_PICK(lm_reduce_BF16);
    case LM_F32: return LM_ISA_PICK(lm_reduce_F32);
    case LM_F64: return LM_ISA_PICK(lm_reduce_F64);
    case LM_U8: return LM_ISA_PICK(lm_reduce_U8);
    case LM_I8: return LM_ISA_PICK(lm_reduce_I8);
    case LM_I16: return LM_ISA_PICK(lm_reduce_I16);
    case LM_I32: return LM_ISA_PICK(lm_reduce_I32);
    default: return LM_ISA_PICK(lm_reduce_I64);
  }
}
