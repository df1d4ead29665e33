/* Declares the end of a convolution or product of float32 that is joined with the layers after it. */
#pragma once

#include <stdint.h>

#include "op_choices.h"

typedef struct lm_epilogue {
  float *y;           /* results, [rows, row] in memory */
  int64_t row;        /* elements of a row */
  const float *other; /* added to y, in the same layout, or NULL */
  lm_activation activation;
  float low, high;
} lm_epilogue;

/* Adds `other` to these rows and columns of y, applies the activation to the sums and limits them to [low, high]. */
void lm_epilogue_run(const lm_epilogue *e, int64_t row, int64_t rows, int64_t column, int64_t columns);
/* Adds `other` to y [rows, row], applies the activation and limits, on several threads. */
lm_status lm_epilogue_run_all(const lm_epilogue *e, int64_t rows);
/* Calls lm_epilogue_run as an lm_cpu_gemm_job's `finish`; ctx: the lm_epilogue. */
static inline void lm_epilogue_finish(const void *ctx, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  lm_epilogue_run(ctx, row, rows, column, columns);
}
