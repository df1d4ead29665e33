/* Computes softmax, its logarithm and their gradients along one dim. */
#pragma once

#include <stdbool.h>

#include "c_linkage.h"
#include "merged_dims.h"
#include "reduce_kinds.h"

enum { LM_SOFTMAX_OUT, LM_SOFTMAX_X, LM_SOFTMAX_Y, LM_SOFTMAX_SIDES };

typedef struct lm_softmax_job {
  lm_softmax_kind kind;
  int dtype; /* dtype of all sides, floating-point */
  void *out;
  const void *x, *y;     /* y: NULL except gradients */
  lm_dims lines;         /* all dims except the reduced one; sides: out, x, y */
  int64_t count, length; /* lines, elements in each; both > 0 */
  int64_t step[LM_SOFTMAX_SIDES];

  /* Rows: `lanes` threads take a line, in blocks of `threads`. Columns: a block takes `lanes` neighboring lines, with
   * threads / lanes threads each. All are powers of two. in_packs: rows whose lines are contiguous, 16-byte aligned,
   * and divisible into packs. */
  bool cols, in_packs;
  int lanes, threads;
} lm_softmax_job;

/* Bytes of numbers (double, or float) that one thread holds: for rows, in packs or not, and for columns. Longer lines
 * are read twice. */
enum { LM_SOFTMAX_ROW = 128, LM_SOFTMAX_LOOSE_ROW = 64, LM_SOFTMAX_COL = 32, LM_SOFTMAX_MAX_BLOCK = 512 };

/* Returns a cudaError_t. */
LM_C int lm_softmax_run(const lm_softmax_job *job, void *stream);
