/* cuDNN handles, made at need and lent out, each with the plans that were found with it: neither is shared between
 * threads at the same time. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cudnn_attention.h"
#include "backend/cuda/libraries/cudnn_conv.h"
#include "backend/cuda/libraries/plan_cache.h"

typedef struct lm_cudnn_found {
  lm_cached head;
  lm_cudnn_key key;
  lm_cudnn_plan plan; /* plan.plan is NULL: the library has none */
  bool bias_apart;    /* the key's bias is added after it */
} lm_cudnn_found;

typedef struct lm_cudnn_attention_found {
  lm_cached head;
  lm_cudnn_attention_key key;
  bool searched;      /* else the key came once, and has no plan yet */
  lm_cudnn_plan plan; /* plan.plan is NULL: the library has none */
} lm_cudnn_attention_found;

typedef struct lm_cudnn {
  struct lm_cudnn *next;
  cudnnHandle_t handle;
  void *stream;        /* that the handle works on */
  lm_cache plans;      /* of lm_cudnn_found */
  lm_cache attentions; /* of lm_cudnn_attention_found */
  lm_cache networks;   /* of lm_cudnn_rnn */
} lm_cudnn;

/* A handle of the frame's device on its stream, which the frame puts back. While anybody captures none is made, since
 * that waits for the whole device: then this waits for one to be put back. */
lm_status lm_cudnn_take(lm_cuda_frame *f, lm_cudnn **out);
/* That there is one, before a capture. */
lm_status lm_cudnn_prepare(int ordinal);
