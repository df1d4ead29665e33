/* Elementwise kernels: a launcher for each elementwise op of op/entries/ops.lua and each compute type that it has, and
 * for each fused gradient. */
#ifndef LM_KERNELS_POINT_H
#define LM_KERNELS_POINT_H

#include "bad_values.h"
#include "strided.h"

enum { LM_POINT_NUMBERS = 4 };

/* In the compute type. */
typedef union lm_point_value {
  float f32;
  double f64;
  int64_t i64;
} lm_point_value;

typedef struct lm_point_launch {
  lm_strided_layout at;                      /* fewer than 2^31 elements */
  lm_point_value value[LM_STRIDED_OPERANDS]; /* of operands without data */
  lm_point_value number[LM_POINT_NUMBERS];   /* its arguments that are numbers */
  lm_bad bad;                                /* for integer division */
  int bad_kind;
  int64_t first; /* elements before these, for bad values' positions */
} lm_point_launch;

/* Returns a cudaError_t. */
typedef int lm_point_launcher(const lm_point_launch *launch, void *stream);

#ifdef __cplusplus
extern "C" {
#endif

#include "point_launchers.h"

/* Operand 1 as it is: conversions, strided copies, filling. */
lm_point_launcher lm_point_f32_copy, lm_point_f64_copy, lm_point_i64_copy;

#ifdef __cplusplus
}
#endif

#endif
