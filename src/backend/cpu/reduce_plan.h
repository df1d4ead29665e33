/* Plans reductions: which elements of x make which result, in what order and in what parts.
 *
 * The result's elements are divided into units, strips of up to `width` along a dim. Rows: each result is made from
 * elements of x that are close to one another. Cols: a strip is made from rows of the strip's width. A unit with much
 * to reduce and few others beside it is cut into parts. Both depend on the sizes alone, so results are the same for any
 * number of threads. */
#pragma once

#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/isa/reduce.h"
#include "merged_dims.h"
#include "tensor/tensor.h"

typedef struct lm_reduce_plan {
  lm_dtype compute; /* float, double or int64 by x's dtype, unless lm_reduce_plan_compute sets another */
  lm_dtype dtype;   /* x's dtype */
  const char *data;
  int64_t bytes;         /* bytes of an element of x */
  lm_dims kept, reduced; /* sides: x, result; at least one dim each */
  int64_t kept_count, reduced_count;
  bool cols;
  int width;
  int64_t strips, units, parts; /* strips along the last kept dim; all units; parts of a unit */
  const struct lm_pointwise_loops *loops;
  const struct lm_reduce_loops *folds;  /* loops of `compute` */
  const struct lm_reduce_loops *direct; /* loops that read x's elements in memory, or NULL */
} lm_reduce_plan;

/* Makes a plan. out has x's sizes along the kept dims; reduced[d] is true for the others. width: of strips of columns,
 * at most LM_REDUCE_COLS. A row is a unit until lm_reduce_plan_batch makes strips of short rows. An op's outputs are
 * laid out alike. */
void lm_reduce_plan_make(lm_reduce_plan *p, const lm_tensor *x, const lm_tensor *out, const bool *reduced, int width);

void lm_reduce_plan_batch(lm_reduce_plan *p);

/* Sets the compute type, which must hold x's elements. */
void lm_reduce_plan_compute(lm_reduce_plan *p, lm_dtype compute);

typedef struct lm_reduce_unit {
  int64_t index; /* index of its first result, counted over the kept dims */
  int cols;
  const char *x;               /* first reduced element of its first column */
  int64_t out, x_step, o_step; /* offset of its first result; strides between columns */
} lm_reduce_unit;

lm_reduce_unit lm_reduce_unit_at(const lm_reduce_plan *p, int64_t unit);
/* Sets the range of reduced elements of part `part`: from *begin up to *end. */
void lm_reduce_part(const lm_reduce_plan *p, int64_t part, int64_t *begin, int64_t *end);

/* A walk over reduced elements in runs along the last reduced dim. */
typedef struct lm_reduce_walk {
  int64_t index[LM_MAX_DIMS], offset; /* in elements */
} lm_reduce_walk;

lm_reduce_walk lm_reduce_walk_from(const lm_reduce_plan *p, int64_t element);
int64_t lm_reduce_walk_run(const lm_reduce_plan *p, const lm_reduce_walk *w);
void lm_reduce_walk_on(const lm_reduce_plan *p, lm_reduce_walk *w, int64_t n);

/* Estimates one thread's nanoseconds for all of x. */
double lm_reduce_work(const lm_reduce_plan *p);
