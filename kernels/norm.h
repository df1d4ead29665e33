/* Computes batch norm and layer norm on CUDA. All functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "c_linkage.h"

/* Numbers of any floating dtype, `stride` elements apart; data NULL: not given. */
typedef struct lm_values {
  void *data;
  int dtype;
  int64_t stride;
} lm_values;

/* Layout of x [N, C, ...] in memory. run 1: rows of c channels (channels-last, or no dims after C); else planes of one
 * channel each, `run` elements long. A channel's sums have lm_norm_parts parts, each [n, a, b][c] doubles: n elements
 * with mean a and b the sum of squared distances from it, or the sums a of g and b of g * (x - mean). */
typedef struct lm_norm_shape {
  int dtype;        /* dtype of x, g, y and dx */
  int64_t c, count; /* channels; elements a channel */
  int64_t run;
  int processors;
} lm_norm_shape;

/* Returns the number of parts of moments and sums. */
LM_C int lm_norm_parts(const lm_norm_shape *shape);

LM_C int lm_batch_moments(const lm_norm_shape *shape, const void *x, double *partial, void *stream);
LM_C int lm_batch_sums(const lm_norm_shape *shape, const void *g, const void *x, lm_values mean, double *partial,
                       void *stream);

/* A plan. Coefficients, in the compute type: [3][c] center, a, k of y = (x - center) * a + k; for gradients [5][c]
 * center, a, k, b, shift of dx = g * a + ((x - center) * b + k), and, relu, of y = (x - center) * a + shift. */
typedef struct lm_batch_plan {
  bool training, relu; /* relu: forward, relu follows; backward, its mask is computed from x again */
  double eps, momentum;
  double max; /* relu's upper limit, backward; NaN: none */
  lm_values weight, bias, running_mean, running_var;
  lm_values mean, invstd;   /* forward: written if given; backward: read if given, else computed of the running ones */
  lm_values dweight, dbias; /* backward: written */
  int64_t *batches;         /* forward: a counter to increment, or NULL */
  const double *partial;    /* moments or sums; NULL forward when not training */
  void *coefficients;
} lm_batch_plan;
/* A bit for each element in memory's order, set where relu's result is above 0 and below max. A byte has the bits of a
 * pack of 16 bytes, lowest first, if x is divisible into such packs and all forward operands are aligned, else that of
 * one element. */
typedef struct lm_relu_mask {
  uint8_t *bits; /* NULL: none */
  int shift;     /* a byte has the bits of 2^shift elements */
} lm_relu_mask;
/* Sums g, or g + more rounded, where relu's result passes: by the mask if there is one, else by y, or if y is NULL by x
 * and the plan. masked: receives that g, 0 elsewhere; may be NULL if y and more are. */
LM_C int lm_batch_masked_sums(const lm_norm_shape *shape, const void *g, const void *more, const void *x, const void *y,
                              lm_relu_mask mask, void *masked, const lm_batch_plan *plan, double *partial,
                              void *stream);
LM_C int lm_batch_plan_forward(const lm_norm_shape *shape, const lm_batch_plan *plan, void *stream);
LM_C int lm_batch_plan_backward(const lm_norm_shape *shape, const lm_batch_plan *plan, void *stream);
LM_C int lm_batch_apply(const lm_norm_shape *shape, const void *x, void *y, const void *coefficients, void *stream);
/* Sets y to relu of x's map + addend (or NULL), at most max (NaN: no limit). mask: written, if there is an addend. */
LM_C int lm_batch_apply_relu(const lm_norm_shape *shape, const void *x, const void *addend, double max, void *y,
                             lm_relu_mask mask, const void *coefficients, void *stream);
LM_C int lm_batch_back(const lm_norm_shape *shape, const void *g, const void *x, void *dx, const lm_batch_plan *plan,
                       void *stream);

/* Layer norm of rows of d elements, each normalized. weight and bias: [d], dtype x's or the compute type. */
typedef struct lm_layer_job {
  int dtype;
  int64_t rows, d;
  const void *g, *x;
  void *y; /* backward: dx */
  lm_values weight, bias;
  lm_values mean, rstd; /* [rows]; forward: written */
  double eps;
  int processors;
} lm_layer_job;
LM_C int lm_layer_forward(const lm_layer_job *job, void *stream);
LM_C int lm_layer_backward(const lm_layer_job *job, void *stream);
/* Compute the gradients of weight and bias, [d]. partial: lm_layer_parts(job) * 3 * d doubles. */
LM_C int lm_layer_parts(const lm_layer_job *job);
LM_C int lm_layer_param_sums(const lm_layer_job *job, double *partial, void *stream);
LM_C int lm_layer_param_grads(const lm_layer_job *job, const double *partial, lm_values dweight, lm_values dbias,
                              void *stream);
