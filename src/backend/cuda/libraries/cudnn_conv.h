/* cuDNN's plans for convolutions: the graph of one pass. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "backend/cuda/libraries/plan_cache.h"
#include "op/nn/conv.h"

/* What a plan depends on. Every byte counts. */
typedef struct lm_cudnn_key {
  lm_conv_shape shape;
  int32_t pass, dtype;
  int32_t channels_last; /* the layout of x, w and y, all three dense; else contiguous */
  int32_t bias;          /* [k] is added in the same graph; forward only */
  int32_t tf32, deterministic, benchmark, unused;
} lm_cudnn_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_key, unused);

/* Begins a search for the key's plans; it must be ended after an error, too. LM_E_MISSING if the library knows no
 * such graph. */
lm_status lm_cudnn_conv_search(const lm_cudnn_target *target, const lm_cudnn_key *key, lm_cudnn_search *s);

/* Enqueues the plan on the handle's stream. x, w, y as the key says; bias is NULL unless the key has one; workspace is
 * device memory of plan->workspace bytes. */
lm_status lm_cudnn_convolve(cudnnHandle_t handle, const lm_cudnn_plan *plan, const void *x, const void *w,
                            const void *y, const void *bias, void *workspace);
