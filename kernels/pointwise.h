/* Declares a launcher for each elementwise op of op/entries/ops.lua and each compute type that it has, and for each
 * fused gradient. */
#pragma once

#include "bad_values.h"
#include "c_linkage.h"
#include "pointwise_numbers.h"
#include "strided.h"

/* A number in the compute type. */
typedef union lm_pointwise_value {
  float f32;
  double f64;
  int64_t i64;
} lm_pointwise_value;

typedef struct lm_pointwise_launch {
  lm_strided_layout at;                            /* fewer than 2^31 elements */
  lm_pointwise_value value[LM_STRIDED_OPERANDS];   /* values of operands without data */
  lm_pointwise_value number[LM_POINTWISE_NUMBERS]; /* the op's arguments that are numbers */
  lm_bad bad;                                      /* for integer division */
  int bad_kind;
  int64_t first; /* number of elements before this launch's, added to the positions of bad values */
} lm_pointwise_launch;

/* Returns a cudaError_t. */
typedef int lm_pointwise_launcher(const lm_pointwise_launch *launch, void *stream);

#include "pointwise_launchers.h"

/* Copy operand 1: conversions, strided copies, filling. */
LM_C lm_pointwise_launcher lm_pointwise_f32_copy;
LM_C lm_pointwise_launcher lm_pointwise_f64_copy;
LM_C lm_pointwise_launcher lm_pointwise_i64_copy;
