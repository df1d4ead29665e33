/* Describes recurrent networks to cuDNN, and finds each weight's offset in the space that it packs them into. The part
 * of cuDNN for them (libcudnn_adv) is loaded at need: it may be missing, or left out by LM_CUDA_WITHOUT=cudnn_rnn. */
#pragma once

#include "backend/cuda/libraries/cudnn_handles.h"

/* A network's key, in which every byte counts. */
typedef struct lm_cudnn_rnn_key {
  int32_t dtype, cell, bidirectional, bias, tf32;
  int32_t layers, input, hidden;
} lm_cudnn_rnn_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_rnn_key, hidden);

typedef struct lm_cudnn_rnn {
  lm_cached head;
  lm_cudnn_rnn_key key;
  cudnnRNNDescriptor_t network;     /* NULL if cuDNN does not support it */
  cudnnDropoutDescriptor_t dropout; /* rate 0; `network` refers to it */
  size_t weight_bytes;
  int weights;       /* tensors: weight_ih, weight_hh and, with bias, bias_ih, bias_hh of each layer and direction */
  int64_t *position; /* index of each one's first number in the packed space, or NULL until lm_cudnn_rnn_weight_slots */
} lm_cudnn_rnn;

/* Finds or makes the key's network. LM_E_MISSING, with a reason, if the library is left out or declines it. */
lm_status lm_cudnn_rnn_get(lm_cudnn *c, const lm_cudnn_rnn_key *key, lm_cudnn_rnn **out);
/* Fills rnn->position; `weight_space`: device memory of weight_bytes. LM_E_MISSING if a weight's gates are apart. */
lm_status lm_cudnn_rnn_weight_slots(lm_cudnn *c, lm_cudnn_rnn *rnn, const void *weight_space);

/* Operands of a call. Pointers are to dense device memory; a pass ignores those that it does not name. */
typedef struct lm_cudnn_rnn_call {
  lm_device device;
  lm_cudnn *cudnn;
  const lm_cudnn_rnn *rnn;
  int steps, batch;
  int *lengths; /* [batch], each sequence's length, the longest first */
  const void *x, *weights, *h0, *c0;
  void *y, *h, *c;
  void *reserve;
  size_t reserve_bytes;
  const void *grad_y, *grad_h, *grad_c; /* backward: all set, grad_c for an lstm */
  void *grad_x, *grad_weights, *grad_h0, *grad_c0;
} lm_cudnn_rnn_call;

/* Returns the bytes that the gradient will need. */
lm_status lm_cudnn_rnn_reserve(const lm_cudnn_rnn_call *call, size_t *bytes);
/* Runs a pass. Forward: without `reserve` there is no gradient later; LM_E_MISSING, with nothing enqueued, if cuDNN
 * declines. Backward: overwrites reserve, which cannot be used again; adds to grad_weights. */
lm_status lm_cudnn_rnn_run(const lm_cudnn_rnn_call *call, bool is_backward);
