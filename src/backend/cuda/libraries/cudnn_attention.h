/* Builds the graphs of both passes of cuDNN's fused attention in half precision. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "backend/cuda/libraries/plan_cache.h"

/* Operands, and their names in a graph: up to OUT [samples, heads, rows, numbers], and from GRAD to DVALUE for the
 * backward pass. LOG_SUM and DOTS [samples, heads, queries] and SUMS, in which dquery is summed, of query's sizes, are
 * float and contiguous. BIAS is added to scores, in query's dtype and without -inf. SEED and OFFSET of dropout are an
 * int64 each. */
enum {
  LM_CUDNN_QUERY = 1, /* 1, since 0 is no unique id */
  LM_CUDNN_KEY,
  LM_CUDNN_VALUE,
  LM_CUDNN_OUT,
  LM_CUDNN_GRAD,
  LM_CUDNN_DQUERY,
  LM_CUDNN_DKEY,
  LM_CUDNN_DVALUE,
  LM_CUDNN_SIDES,
  LM_CUDNN_LOG_SUM = LM_CUDNN_SIDES,
  LM_CUDNN_DOTS,
  LM_CUDNN_SUMS,
  LM_CUDNN_BIAS,
  LM_CUDNN_SEED,
  LM_CUDNN_OFFSET,
  LM_CUDNN_ALL
};

/* A plan's key, in which every byte counts. */
typedef struct lm_cudnn_attention_key {
  int64_t samples, heads, key_heads, queries, keys, width, value_width;
  int64_t stride[LM_CUDNN_SIDES][3]; /* strides of sample, head and row; the numbers are dense */
  int64_t bias[4];                   /* strides of BIAS, 0 where broadcast; the last one is 0 without a bias */
  double dropout_p;                  /* below 1 */
  int32_t dtype, causal, backward, unused;
} lm_cudnn_attention_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_attention_key, unused);

/* The sizes of a side [samples, heads, rows, width]. */
typedef struct lm_cudnn_attention_size {
  int64_t heads, rows, width;
} lm_cudnn_attention_size;
lm_cudnn_attention_size lm_cudnn_attention_size_of(const lm_cudnn_attention_key *key, int side);

/* Begins a search for the key's plans; the caller must end it, after an error too. LM_E_MISSING if cuDNN knows no such
 * graph. */
lm_status lm_cudnn_attention_search(const lm_cudnn_target *target, const lm_cudnn_attention_key *key,
                                    lm_cudnn_search *s);

/* Enqueues the plan on the handle's stream: forward writes OUT and LOG_SUM; backward reads those and writes the others.
 * data is NULL for operands that the pass does not have. */
lm_status lm_cudnn_attend(cudnnHandle_t handle, const lm_cudnn_plan *plan, const lm_cudnn_attention_key *key,
                          double scale, const void *const data[LM_CUDNN_ALL], void *workspace);
