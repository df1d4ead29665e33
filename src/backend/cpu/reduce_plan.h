/* The plan behind every reduction: which elements of x make which result, in what order and in what parts.
 *
 * The result's elements come in units, strips of up to `width` along a dim. Rows: each element is made from elements of
 * x that lie close to one another. Cols: a strip is made from rows of the strip's width. A unit with
 * much to reduce and few others beside it is cut into parts. Both depend on the sizes alone, so results are the
 * same for any number of threads. */
#pragma once

#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/isa/reduce.h"
#include "merged_dims.h"
#include "tensor/tensor.h"

typedef struct lm_reduce_plan {
  lm_dtype compute; /* float, double or int64, from x's dtype, unless lm_reduce_plan_compute says another */
  lm_dtype dtype;   /* x's */
  const char *data;
  int64_t bytes;         /* of an element of x */
  lm_dims kept, reduced; /* sides: x, result; at least one dim each */
  int64_t kept_count, reduced_count;
  bool cols;
  int width;
  int64_t strips, units, parts; /* strips along the last kept dim; all units; parts of each */
  const struct lm_pointwise_loops *loops;
  const struct lm_reduce_loops *folds;  /* of `compute` */
  const struct lm_reduce_loops *direct; /* of x's elements as they are in memory, or NULL */
} lm_reduce_plan;

/* out: x's sizes along the dims that stay; reduced[d] says which go. width: of strips of columns, at most
 * LM_REDUCE_COLS; rows are units of their own until lm_reduce_plan_batch makes strips of short ones. Where a slot has
 * several outputs they are laid out alike. */
void lm_reduce_plan_make(lm_reduce_plan *p, const lm_tensor *x, const lm_tensor *out, const bool *reduced, int width);

void lm_reduce_plan_batch(lm_reduce_plan *p);

/* From here on in `compute`, which holds x's elements. */
void lm_reduce_plan_compute(lm_reduce_plan *p, lm_dtype compute);

typedef struct lm_reduce_unit {
  int64_t index; /* of its first element, counted over the kept dims */
  int cols;
  const char *x;               /* the first reduced element of its first column */
  int64_t out, x_step, o_step; /* offset of its result; strides between columns */
} lm_reduce_unit;

lm_reduce_unit lm_reduce_unit_at(const lm_reduce_plan *p, int64_t unit);
/* Part `part` of the reduced elements: from *begin up to *end. */
void lm_reduce_part(const lm_reduce_plan *p, int64_t part, int64_t *begin, int64_t *end);

/* A walk over reduced elements in runs along the last reduced dim. */
typedef struct lm_reduce_walk {
  int64_t index[LM_MAX_DIMS], offset; /* in elements */
} lm_reduce_walk;

lm_reduce_walk lm_reduce_walk_from(const lm_reduce_plan *p, int64_t element);
int64_t lm_reduce_walk_run(const lm_reduce_plan *p, const lm_reduce_walk *w);
void lm_reduce_walk_on(const lm_reduce_plan *p, lm_reduce_walk *w, int64_t n);

/* About how many nanoseconds the whole of x takes one thread. */
double lm_reduce_work(const lm_reduce_plan *p);
