/* cuDNN's convolution plans: the operation graph of one pass, the engines the library proposes for it, and running one.
 *
 * Plans are made for a handle's device, or for a device known only by its properties: so a machine without a GPU can
 * find out which convolutions have plans (spec/support/cudnn_plans.c). */
#ifndef LM_CUDA_CUDNN_PLAN_H
#define LM_CUDA_CUDNN_PLAN_H

#include <cudnn.h>

#include "op/nn/conv.h"

/* What a plan depends on. Made from zeros, since every byte counts. */
typedef struct lm_cudnn_key {
  lm_conv_shape shape;
  int32_t pass, dtype;
  int32_t channels_last; /* the layout of x, w and y, all three dense; else contiguous */
  int32_t bias;          /* [k] is added in the same graph; forward only */
  int32_t tf32, deterministic, benchmark;
} lm_cudnn_key;

typedef struct lm_cudnn_target { /* one of the two */
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t properties;
} lm_cudnn_target;

typedef struct lm_cudnn_plan {
  cudnnBackendDescriptor_t config, plan; /* NULL: no plan */
  int64_t workspace;                     /* bytes */
} lm_cudnn_plan;

/* Every pointer is a multiple of LM_CUDNN_ALIGN bytes. Of the engines' configurations, up to 36 are proposed, and those
 * that a key allows may be the last. */
enum { LM_CUDNN_ALIGN = 16, LM_CUDNN_CONFIGS = 64, LM_CUDNN_PARTS = 12 };

/* The plans of a key, one after another. Begin, next until enough, end (also after an error in begin). */
typedef struct lm_cudnn_search {
  lm_cudnn_target target;
  lm_cudnn_key key;
  cudnnBackendDescriptor_t part[LM_CUDNN_PARTS]; /* what the graph consists of */
  int parts;
  cudnnBackendDescriptor_t graph;
  cudnnBackendDescriptor_t config[LM_CUDNN_CONFIGS];
  int configs, at;
  int mode;   /* of the heuristics: how many were asked */
  int failed; /* the first status of a plan that failed for another reason than lack of support */
} lm_cudnn_search;

/* LM_E_MISSING if the library knows no such graph. */
lm_status lm_cudnn_search_begin(const lm_cudnn_target *target, const lm_cudnn_key *key, lm_cudnn_search *s);
/* The best of those not given yet, yours to free; plan->plan is NULL when there is none left. */
lm_status lm_cudnn_search_next(lm_cudnn_search *s, lm_cudnn_plan *plan);
void lm_cudnn_search_end(lm_cudnn_search *s);
void lm_cudnn_plan_free(lm_cudnn_plan *plan);

/* Enqueues the plan on the handle's stream. x, w, y as the key says; bias is NULL unless the key has one; workspace is
 * device memory of plan->workspace bytes. */
lm_status lm_cudnn_execute(cudnnHandle_t handle, const lm_cudnn_plan *plan, const void *x, const void *w, const void *y,
                           const void *bias, void *workspace);

/* An lm_dtype, and what is computed in for it. */
cudnnDataType_t lm_cudnn_type(int dtype);
cudnnDataType_t lm_cudnn_compute_type(int dtype);

/* A cudnnStatus_t as a status: "conv2d: cudnnBackendFinalize: error 4000 (CUDNN_STATUS_INTERNAL_ERROR): why".
 * LM_E_MISSING for what the library does not support, LM_E_OOM where it found no memory. */
lm_status lm_cuda_check_cudnn(int code, const char *call);
/* The name of the call is what stands before its parenthesis. */
#define CUDNN(call) lm_cuda_check_cudnn((int)(call), #call)

#endif
