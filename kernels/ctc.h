/* Computes the CTC loss and its gradient. Both functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include "bad_values.h"
#include "c_linkage.h"

/* x and dx: [times, samples, classes], loss and grad [samples], alpha [samples, times, states], beta
 * [samples, 2, states]; target [labels], of which sample n has target_lengths[n] from starts[n] on. Float or double. */
typedef struct lm_ctc_job {
  int dtype, bad_label, bad_length;                       /* bad_label, bad_length: kinds of bad values to report */
  int64_t times, samples, classes, states, blank, labels; /* blank from 0 */
  const int64_t *target, *starts, *input_lengths, *target_lengths;
  const void *x, *grad;
  void *loss, *alpha, *beta, *dx;
  lm_bad bad;
} lm_ctc_job;

LM_C int lm_k_ctc_forward(const lm_ctc_job *job, void *stream);
LM_C int lm_k_ctc_backward(const lm_ctc_job *job, void *stream);
