/* Declares products of floats, rounded to 8 bits, with rows of quantized blocks. */
#pragma once

#include "backend/cpu/isa.h"
#include "blocks.h"
#include "tensor/dtype.h"

/* Elements that the products take at a time; rows of x are padded to them with zeros. */
enum { LM_BLOCK_CHUNK = LM_BLOCK_LONGEST };

/* Rows of x for a kind: integers of 8 bits, called steps, and for each of the kind's groups the value of a step, the
 * sum of steps times that value, and the sum of steps times -zero, `start`. `part` has sums of four steps times -zero.
 * Start or part is NULL if the product that follows does not need it. */
typedef struct lm_block_steps {
  int64_t row; /* elements, padded */
  int8_t *steps;
  float *scale, *sum;
  int32_t *start, *part;
} lm_block_steps;

struct lm_block_loops {
  /* Rounds row x of n elements to row r of `to`, each 32 of them to 1 / 254 of their largest magnitude. Those with a
   * number that is not finite get a scale of NaN. */
  void (*round)(const lm_block_kind *kind, int64_t n, const float *x, const lm_block_steps *to, int64_t r);
  /* Computes y[r * y_row + j] = the product of row r of x, of n elements, and row j of weight, plus bias[j], for `rows`
   * rows and `outs` outputs, for each kind; bias may be NULL. The sum of a row does not depend on the others. Needs
   * part. */
  void (*few[LM_BLOCK_KINDS_COUNT])(int64_t rows, int64_t outs, int64_t n, const lm_block_steps *x,
                                    const uint8_t *weight, const float *bias, float *y, int64_t y_row);
  /* Computes the same for many rows and up to `panel` outputs, which it expands to 8 bits in scratch first; needs
   * start. */
  void (*many[LM_BLOCK_KINDS_COUNT])(int64_t rows, int outs, int64_t n, const lm_block_steps *x, const uint8_t *weight,
                                     const float *bias, float *y, int64_t y_row, void *scratch);
  int few_rows, panel; /* the most rows for which few is faster, and outputs of many */
};

LM_ISA_DECLARE(struct lm_block_loops, lm_block_loops);

/* Returns the bytes of scratch for rows of `row` elements: a byte and up to two floats for each 16. */
static inline size_t lm_block_scratch(int panel, int64_t row) { return (size_t)(panel * row) * 3 / 2; }
