/* Declares loops that attention runs on a block of scores between its matrix products, float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "backend/cpu/isa/dropout.h"
#include "tensor/dtype.h"

/* Scores [rows, cols] of queries and keys; a row begins `line` elements after the one before. */
typedef struct lm_score_block {
  void *scores;
  int64_t rows, cols, line;
  int64_t causal;   /* row r sees the columns below causal + r; LM_SEES_ALL: all */
  const char *mask; /* mask of the first score, or NULL: bool (false: not seen), or numbers to be added */
  bool mask_is_bool;
  int64_t mask_row, mask_col;     /* strides; mask_col is 0 or 1 */
  double cap;                     /* scores become cap * tanh(score / cap), before the mask; 0: none */
  const lm_dropout_params *drop;  /* dropout of weights, or NULL */
  int64_t position, position_row; /* index of the first score in the draw; from one row to the next */
} lm_score_block;

#define LM_SEES_ALL (INT64_MAX / 2)

struct lm_attention_loops {
  /* Updates the softmax along rows for a block of columns. row_max becomes the largest score so far, scores exp(score -
   * row_max), sum the sum of those so far; values [rows, width], sums weighted so far, are rescaled. Then dropped
   * weights become 0. */
  void (*online_softmax)(const lm_score_block *b, void *row_max, void *sum, void *values, int64_t width);
  /* Replaces scores by exp(score - norm of the row). */
  void (*weights)(const lm_score_block *b, const void *norm);
  /* Computes out[r] = row r of x times row r of y. */
  void (*row_dots)(void *out, const void *x, int64_t x_row, const void *y, int64_t y_row, int64_t rows, int64_t n);
  /* Computes slope = weight * (slope - dot of the row) * scale, for b's weights and slopes in their layout. With
   * dropout, a slope is first multiplied by drop->scale, or by 0 where the weight is dropped; that weight becomes 0. */
  void (*slopes)(const lm_score_block *b, void *slopes, const void *dots, double scale);
  /* Computes out = values * scale / sum, norm = row_max + log(sum); rows without keys are 0, and their norm inf. */
  void (*finish)(void *out, int64_t out_row, void *norm, const void *values, const void *row_max, const void *sum,
                 double scale, int64_t rows, int64_t width);
};

LM_ISA_DECLARE_REAL(struct lm_attention_loops, lm_attention_loops)
