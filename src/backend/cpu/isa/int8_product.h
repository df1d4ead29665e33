/* Declares products with rows of int8, each of which has a scale. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Rows of x that `products` takes at a time; numbers of a row that share a scale. */
enum { LM_INT8_ROWS = 4, LM_INT8_BLOCK = 64 };

/* Rows of x as integers, called steps: row r has `row` of them, a multiple of LM_INT8_BLOCK, from steps + r * row on.
 * Each of its blocks has a scale, the value of a step, from scale + r * row / LM_INT8_BLOCK on. */
typedef struct lm_int8_steps {
  int64_t row;
  int16_t *steps;
  float *scale;
} lm_int8_steps;

struct lm_int8_loops {
  /* Rounds x [k] to row r of `to`, to 1 / 65,534 of each block's largest magnitude. Returns false, with the row
   * undefined, if a number is not finite, or all of a block are too small to be divided by. */
  bool (*round)(int64_t k, const float *x, const lm_int8_steps *to, int64_t r);
  /* Computes y[i * y_row + j] = scale[j] * (row first + i of x times row j of weight) + bias[j], for `rows` rows, up to
   * LM_INT8_ROWS, and `outs` of weight, of k numbers each; bias may be NULL. */
  void (*products)(int rows, int64_t outs, int64_t k, const lm_int8_steps *x, int64_t first, const int8_t *weight,
                   const float *scale, const float *bias, float *y, int64_t y_row);
  /* Computes row j of out = scale[j] * row j of weight. */
  void (*expand)(int64_t outs, int64_t k, const int8_t *weight, const float *scale, float *out);
};

LM_ISA_DECLARE(struct lm_int8_loops, lm_int8_loops);
