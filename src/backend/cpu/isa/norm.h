/* Declares loops of the normalizations. Sums are kept in the compute type over blocks that stay in cache, and in double
 * from block to block. "Rows" loops walk [rows, c] with one statistic for each column (batch norm, channels-last);
 * "run" loops walk n contiguous elements with one statistic for all (batch norm, contiguous; layer norm). Arrays of
 * channels called ACC hold float, or double for float64 data. */
#pragma once

#include <stdbool.h>

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Inputs of batch norm's gradient. With relu, g counts where relu's result is above 0 and below max. */
typedef struct lm_norm_back {
  const void *g, *x;
  bool relu;
  double max;    /* upper bound; NaN: none */
  const void *y; /* relu's result; NULL: it is (x - mean) * scale + shift */
  void *masked;  /* takes g where it counts, else 0; NULL: nothing does, and y is NULL as well */
} lm_norm_back;

typedef struct lm_norm_loops_of {
  /* Computes each column's mean and sum of squared distances from it. work: ACC [3 * c]. */
  void (*rows_moments)(const void *x, int64_t rows, int64_t c, double *mean, double *m2, void *work);
  /* Computes y = (x - mean) * scale + shift; all ACC [c]. relu: adds `addend` unless it is NULL, then clamps to at
   * least 0, and to at most max unless that is NaN. y may be x. */
  void (*rows_apply)(const void *x, const void *addend, void *y, int64_t rows, int64_t c, const void *mean,
                     const void *scale, const void *shift, bool relu, double max);
  /* Sums g and g * (x - mean) for each column. mean, scale, shift: ACC [c]; work: ACC [2 * c]. */
  void (*rows_sums)(const lm_norm_back *in, int64_t rows, int64_t c, const void *mean, const void *scale,
                    const void *shift, double *sum_g, double *sum_gx, void *work);
  /* Computes dx = g * a + (x - mean) * b + k; all ACC [c]. shift not NULL: g counts where (x - mean) * a + shift is
   * above 0 and below max (NaN: no bound). */
  void (*rows_back)(const void *g, const void *x, void *dx, int64_t rows, int64_t c, const void *mean, const void *a,
                    const void *b, const void *k, const void *shift, double max);
  void (*run_moments)(const void *x, int64_t n, double *mean, double *m2);
  void (*run_apply)(const void *x, const void *addend, void *y, int64_t n, double mean, double scale, double shift,
                    bool relu, double max);
  void (*run_sums)(const lm_norm_back *in, int64_t n, double mean, double scale, double shift, double *sum_g,
                   double *sum_gx);
  /* run_*: as rows_* above, for n contiguous elements of one channel. shift: NULL, or the channel's one number. */
  void (*run_back)(const void *g, const void *x, void *dx, int64_t n, double mean, double a, double b, double k,
                   const double *shift, double max);
  /* Computes layer norm of rows of d: y = (x - mean) * rstd * weight + bias; mean, rstd: ACC [rows], written; weight,
   * bias: ACC [d]. */
  void (*layer)(const void *x, void *y, int64_t rows, int64_t d, const void *weight, const void *bias, double eps,
                void *mean, void *rstd);
  /* Computes layer's gradient; adds to the sums of dweight and dbias, work: ACC [2 * d]. */
  void (*layer_back)(const void *g, const void *x, void *dx, int64_t rows, int64_t d, const void *weight,
                     const void *mean, const void *rstd, void *work);
  /* Computes RMS norm: y = x * rstd * weight, rstd from the mean square alone. */
  void (*rms)(const void *x, void *y, int64_t rows, int64_t d, const void *weight, double eps, void *rstd);
  /* Computes rms's gradient; adds to the sum of dweight, work: ACC [d]. */
  void (*rms_back)(const void *g, const void *x, void *dx, int64_t rows, int64_t d, const void *weight,
                   const void *rstd, void *work);
} lm_norm_loops_of;

struct lm_norm_loops {
  lm_norm_loops_of of[LM_DTYPE_COUNT]; /* floating dtypes only */
  /* Adds n sums in `work`, double if `wide` or else float, to `sums`, and sets them to 0. */
  void (*flush)(double *sums, void *work, int64_t n, bool wide);
};
LM_ISA_DECLARE(struct lm_norm_loops, lm_norm_loops);
