/* cuDNN's recurrent networks: what they are described by, and where weights lie in the space that it packs them into.
 * Of libcudnn, which is there, the part for them is loaded at need (libcudnn_adv): it may be missing, or left out by
 * LM_CUDA_WITHOUT=cudnn_rnn. */
#pragma once

#include "backend/cuda/libraries/cudnn_handles.h"

/* What a network depends on. Every byte counts. */
typedef struct lm_cudnn_rnn_key {
  int32_t dtype, cell, bidirectional, bias, tf32;
  int32_t layers, input, hidden;
} lm_cudnn_rnn_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_rnn_key, hidden);

typedef struct lm_cudnn_rnn {
  lm_cached head;
  lm_cudnn_rnn_key key;
  cudnnRNNDescriptor_t network;     /* NULL: the library has none such */
  cudnnDropoutDescriptor_t dropout; /* the network's */
  size_t weight_bytes;
  int weights;       /* tensors: weight_ih, weight_hh and, with bias, bias_ih, bias_hh of each layer and direction */
  int64_t *position; /* of each of them the first number in the packed space, or NULL until lm_cudnn_rnn_weight_slots */
} lm_cudnn_rnn;

/* LM_E_MISSING, with a reason, where the library is left out or declines the network. */
lm_status lm_cudnn_rnn_of(lm_cudnn *c, const lm_cudnn_rnn_key *key, lm_cudnn_rnn **out);
/* Fills rnn->place; `packed` is device memory of its size. LM_E_MISSING where a weight's gates do not lie one after the
 * other. */
lm_status lm_cudnn_rnn_weight_slots(lm_cudnn *c, lm_cudnn_rnn *rnn, const void *packed);

/* What one call works on. Pointers are to dense device memory; those that a pass does not name are not looked at. */
typedef struct lm_cudnn_rnn_call {
  lm_device device;
  lm_cudnn *cudnn;
  const lm_cudnn_rnn *rnn;
  int steps, batch;
  int *lengths; /* [batch], of each sequence, the longest first */
  const void *x, *weights, *h0, *c0;
  void *y, *h, *c;
  void *reserve;
  size_t reserve_bytes;
  const void *grad_y, *grad_h, *grad_c; /* backward: all there, grad_c of an lstm */
  void *grad_x, *grad_weights, *grad_h0, *grad_c0;
} lm_cudnn_rnn_call;

/* Bytes that the gradient will need. */
lm_status lm_cudnn_rnn_reserve(const lm_cudnn_rnn_call *call, size_t *bytes);
/* With reserve NULL there will be no gradient. LM_E_MISSING, and nothing was enqueued, where the library declines. */
lm_status lm_cudnn_rnn_forward(const lm_cudnn_rnn_call *call);
/* Writes into reserve, which is of no use afterwards; adds to grad_weights. */
lm_status lm_cudnn_rnn_backward(const lm_cudnn_rnn_call *call);
