/* Builds cuDNN's graph of one pass of a convolution. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "backend/cuda/libraries/plan_cache.h"
#include "op/nn/conv.h"

/* A plan's key, in which every byte counts. */
typedef struct lm_cudnn_key {
  lm_conv_shape shape;
  int32_t pass, dtype;
  int32_t channels_last; /* true if x, w and y, all dense, are channels-last; else contiguous */
  int32_t bias;          /* true if [k] is added in the same graph; forward only */
  int32_t tf32, deterministic, benchmark, unused;
} lm_cudnn_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_key, unused);

/* Begins a search for the key's plans; the caller must end it, after an error too. LM_E_MISSING if cuDNN knows no such
 * graph. */
lm_status lm_cudnn_conv_search(const lm_cudnn_target *target, const lm_cudnn_key *key, lm_cudnn_search *s);

/* Enqueues the plan on the handle's stream. x, w, y have the key's layout; bias is NULL unless the key has one;
 * workspace is device memory of plan->workspace bytes. */
lm_status lm_cudnn_convolve(cudnnHandle_t handle, const lm_cudnn_plan *plan, const void *x, const void *w,
                            const void *y, const void *bias, void *workspace);
