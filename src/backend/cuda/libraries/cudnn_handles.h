/* Pools cuDNN handles, made at need, each with the plans that were found with it: neither is shared between threads at
 * the same time. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cudnn_attention.h"
#include "backend/cuda/libraries/cudnn_conv.h"
#include "backend/cuda/libraries/plan_cache.h"

typedef struct lm_cudnn_found {
  lm_cached head;
  lm_cudnn_key key;
  lm_cudnn_plan plan; /* plan.plan is NULL if cuDNN has none */
  bool bias_apart;    /* true if the key's bias is added after the plan runs */
} lm_cudnn_found;

typedef struct lm_cudnn_attention_found {
  lm_cached head;
  lm_cudnn_attention_key key;
  bool searched;      /* false if the key was used only once, so far without a search for a plan */
  lm_cudnn_plan plan; /* plan.plan is NULL if cuDNN has none */
} lm_cudnn_attention_found;

typedef struct lm_cudnn {
  struct lm_cudnn *next;
  cudnnHandle_t handle;
  void *stream;        /* stream that the handle works on */
  lm_cache plans;      /* entries: lm_cudnn_found */
  lm_cache attentions; /* entries: lm_cudnn_attention_found */
  lm_cache networks;   /* entries: lm_cudnn_rnn */
} lm_cudnn;

/* Returns a handle of the frame's device on its stream, which the frame puts back. Making one waits for the whole
 * device, so during any capture this waits for a handle to be put back instead. */
lm_status lm_cudnn_take(lm_cuda_frame *f, lm_cudnn **out);
/* Ensures that a handle exists, before a capture. */
lm_status lm_cudnn_prepare(int ordinal);
