/* Loops of the normalizations. Sums are kept in the compute type over blocks that stay in cache and
 * in double from block to block. "Rows" loops walk [rows, c] with one statistic a column (batch norm,
 * channels-last); "run" loops walk n neighbours with one statistic for all (batch norm, contiguous;
 * layer norm). Per-channel arrays called ACC hold float, or double for float64 data. */
#ifndef LM_CPU_ISA_NORM_H
#define LM_CPU_ISA_NORM_H

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

typedef struct lm_norm_loops_of {
  /* Mean, and sum of squared distances from it, of each column. work: ACC [3 * c]. */
  void (*rows_moments)(const void *x, int64_t rows, int64_t c, double *mean, double *m2, void *work);
  /* y = (x - mean) * scale + shift; all ACC [c]. */
  void (*rows_apply)(const void *x, void *y, int64_t rows, int64_t c, const void *mean, const void *scale,
                     const void *shift);
  /* Sums of g and of g * (x - mean) of each column. mean: ACC [c]; work: ACC [2 * c]. */
  void (*rows_sums)(const void *g, const void *x, int64_t rows, int64_t c, const void *mean, double *sum_g,
                    double *sum_gx, void *work);
  /* dx = g * a + (x - mean) * b + k; all ACC [c]. */
  void (*rows_back)(const void *g, const void *x, void *dx, int64_t rows, int64_t c, const void *mean, const void *a,
                    const void *b, const void *k);
  void (*run_moments)(const void *x, int64_t n, double *mean, double *m2);
  void (*run_apply)(const void *x, void *y, int64_t n, double mean, double scale, double shift);
  void (*run_sums)(const void *g, const void *x, int64_t n, double mean, double *sum_g, double *sum_gx);
  void (*run_back)(const void *g, const void *x, void *dx, int64_t n, double mean, double a, double b, double k);
  /* Layer norm of rows of d: y = (x - mean) * rstd * weight + bias; mean, rstd: ACC [rows], written;
   * weight, bias: ACC [d]. */
  void (*layer)(const void *x, void *y, int64_t rows, int64_t d, const void *weight, const void *bias, double eps,
                void *mean, void *rstd);
  /* Its gradient; adds to dweight and dbias. work: ACC [2 * d]. */
  void (*layer_back)(const void *g, const void *x, void *dx, int64_t rows, int64_t d, const void *weight,
                     const void *mean, const void *rstd, double *dweight, double *dbias, void *work);
} lm_norm_loops_of;

struct lm_norm_loops {
  lm_norm_loops_of of[LM_DTYPE_COUNT]; /* floating dtypes alone */
};
LM_ISA_DECLARE(struct lm_norm_loops, lm_norm_loops);

#endif
