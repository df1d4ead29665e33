/* Computes negative log-likelihood and cross entropy. Positions (n, s) of the labels are counted n * inner + s. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bad_values.h"
#include "c_linkage.h"

typedef enum lm_nll_reduction { LM_NLL_NONE, LM_NLL_MEAN, LM_NLL_SUM } lm_nll_reduction;

typedef struct lm_nll_job {
  const int64_t *label;           /* [images, inner], from 1 */
  const void *weight;             /* [classes], or NULL */
  int dtype, weight_dtype;        /* dtype: that of x, of its gradient and of the loss */
  int64_t ignore;                 /* a label that does not count */
  int64_t images, classes, inner; /* x is [images, classes, inner] */
  int64_t stride[3];              /* strides of x, or of its gradient */
  lm_nll_reduction reduction;
  int bad_kind; /* reported for labels outside 1 to classes */
  lm_bad bad;
  /* Fields of the forward pass. */
  const void *x;
  void *out, *total; /* total: the sum of the weights, float or double */
  int total_dtype;
  int parts; /* blocks; with more than one, `partial` has 2 * parts doubles and a second launch adds them up */
  double *partial;
  /* backward, which reads total; the gradient is dense, images outermost */
  const void *grad;
  void *dx;
} lm_nll_job;

enum { LM_NLL_BLOCK = 256 };

/* Cross entropy of rows of logits, x [images, classes] of strides stride[0] and stride[1]; inner is 1. */
typedef struct lm_entropy_job {
  lm_nll_job nll; /* its dtype is that of x's statistics; so are weight, total and stats */
  int x_dtype;    /* dtype of x and dx */
  double smoothing;
  void *stats;        /* [images, 2]: the largest logit and the sum of e^(x - that); written forward */
  int lanes, threads; /* `lanes` threads take a row, in blocks of `threads`; powers of two. nll.parts blocks */
} lm_entropy_job;

enum { LM_ENTROPY_BLOCK = 512 };

/* Compute negative log-likelihood and its gradient; return a cudaError_t. */
LM_C int lm_nll_forward(const lm_nll_job *job, void *stream);
LM_C int lm_nll_backward(const lm_nll_job *job, void *stream);
LM_C int lm_entropy_forward(const lm_entropy_job *job, void *stream);
LM_C int lm_entropy_backward(const lm_entropy_job *job, void *stream);
