/* Builds cuDNN's graphs, lists the engines that it proposes for them, and runs plans.
 *
 * Plans are made for a handle's device, or for a device known only by its properties: so a machine without a GPU can
 * find out what has plans (spec/support/cudnn_plans.c). */
#pragma once

#include <cudnn.h>

#include "op/op.h"

/* ---- graphs */

/* Limits of a graph. Every pointer except a WORD's is a multiple of LM_CUDNN_ALIGN bytes. cuDNN proposes up to 36
 * engine configurations, and allowed ones may be the last. */
enum { LM_CUDNN_ALIGN = 16, LM_CUDNN_CONFIGS = 64, LM_CUDNN_PARTS = 160, LM_CUDNN_OPS = 32 };

/* A graph, zeros at first. After the first error, the status, the calls below do nothing, and descriptors are NULL. */
typedef struct lm_cudnn_graph {
  cudnnBackendDescriptor_t part[LM_CUDNN_PARTS]; /* all descriptors, owned */
  cudnnBackendDescriptor_t op[LM_CUDNN_OPS];
  int parts, ops;
  cudnnBackendDescriptor_t whole;
  lm_status status;
} lm_cudnn_graph;

/* Make a descriptor that lives as long as the graph: new, its attributes set, finished. */
cudnnBackendDescriptor_t lm_cudnn_new(lm_cudnn_graph *g, cudnnBackendDescriptorType_t type);
void lm_cudnn_set(lm_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void *value);
void lm_cudnn_set_part(lm_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                       cudnnBackendDescriptor_t part);
void lm_cudnn_finish(lm_cudnn_graph *g, cudnnBackendDescriptor_t d);
void lm_cudnn_finish_op(lm_cudnn_graph *g, cudnnBackendDescriptor_t op); /* also adds the graph's next operation */

typedef enum lm_cudnn_kind {
  LM_CUDNN_MEMORY, /* on the device, at a pointer that each run passes */
  LM_CUDNN_WORD,   /* on the device, at a pointer aligned to its one int64 */
  LM_CUDNN_INSIDE, /* only within the graph */
  LM_CUDNN_NUMBER  /* one number in host memory, read at each run */
} lm_cudnn_kind;

/* Makes a tensor of four dims; the id is its name in the graph and in the variant pack. */
cudnnBackendDescriptor_t lm_cudnn_tensor(lm_cudnn_graph *g, lm_cudnn_kind kind, int64_t id, cudnnDataType_t type,
                                         const int64_t *size, const int64_t *stride);
/* Adds y = mode(x), mode(x, b), or mode(x, b, t); b and t may be NULL. axis: a mode's axis, or -1. */
void lm_cudnn_pointwise(lm_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis,
                        cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                        cudnnBackendDescriptor_t y);

/* Return cuDNN's type of an lm_dtype, and the type that it is computed in. */
cudnnDataType_t lm_cudnn_type(int dtype);
cudnnDataType_t lm_cudnn_compute_type(int dtype);

/* ---- plans */

typedef struct lm_cudnn_target { /* one of the two is set */
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t properties;
} lm_cudnn_target;

typedef struct lm_cudnn_plan {
  cudnnBackendDescriptor_t config, plan; /* NULL: no plan */
  int64_t workspace;                     /* bytes */
} lm_cudnn_plan;

/* An iteration over a graph's plans: build s->graph, ready, next until enough, end (also after an error). */
typedef struct lm_cudnn_search {
  lm_cudnn_target target;
  struct {
    int dtype; /* dtype of operands */
    bool tf32, deterministic;
  } allow;
  lm_cudnn_graph graph;
  cudnnBackendDescriptor_t config[LM_CUDNN_CONFIGS];
  int configs, at;
  int mode;   /* number of heuristic modes used */
  int failed; /* first status of a plan that failed for another reason than lack of support */
} lm_cudnn_search;

/* Finishes the graph. LM_E_MISSING if cuDNN knows no such graph. */
lm_status lm_cudnn_search_ready(lm_cudnn_search *s);
/* Sets s->config to the heuristics' proposals in the mode; none is no error. next calls it by itself. */
lm_status lm_cudnn_search_ask(lm_cudnn_search *s, cudnnBackendHeurMode_t mode);
/* Returns the best plan not returned yet, which the caller frees; plan->plan is NULL after the last. */
lm_status lm_cudnn_search_next(lm_cudnn_search *s, lm_cudnn_plan *plan);
void lm_cudnn_search_end(lm_cudnn_search *s);
void lm_cudnn_plan_free(lm_cudnn_plan *plan);

/* Enqueues the plan on the handle's stream: `count` tensors' ids and addresses; workspace is device memory of
 * plan->workspace bytes. */
lm_status lm_cudnn_execute(cudnnHandle_t handle, const lm_cudnn_plan *plan, int count, const int64_t *id,
                           const void *const *data, void *workspace);

/* Converts a cudnnStatus_t: "conv2d: cudnnBackendFinalize: error 4000 (CUDNN_STATUS_INTERNAL_ERROR): why". LM_E_MISSING
 * if cuDNN does not support the operation, LM_E_OOM if it found no memory. */
lm_status lm_cuda_check_cudnn(int code, const char *call);
/* Checks a call, whose name is the text before its parenthesis. */
#define CUDNN(call) lm_cuda_check_cudnn((int)(call), #call)
