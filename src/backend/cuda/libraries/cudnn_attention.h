/* cuDNN's fused attention in half precision: the graphs of both passes. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "backend/cuda/libraries/plan_cache.h"

/* What is read and written, and with it what it is called in a graph. Of [samples, heads, rows, numbers] up to OUT, and
 * those from GRAD on backward only; LOG_SUM and DOTS [samples, heads, queries] and SUMS, what dquery is added up in, of
 * query's sizes: float and contiguous; BIAS is added to scores, in query's dtype and without -inf; SEED and OFFSET, an
 * int64 each, of dropout. */
enum {
  LM_CUDNN_QUERY = 1, /* 0 is no unique id */
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

/* What a plan depends on. Every byte counts. */
typedef struct lm_cudnn_attention_key {
  int64_t samples, heads, key_heads, queries, keys, width, value_width;
  int64_t stride[LM_CUDNN_SIDES][3]; /* of sample, head and row; the numbers are dense */
  int64_t bias[4];                   /* strides of BIAS, 0 where one number is for all; of a key 0: no bias */
  double dropout_p;                  /* below 1 */
  int32_t dtype, causal, backward, unused;
} lm_cudnn_attention_key;
LM_KEY_WITHOUT_PADDING(lm_cudnn_attention_key, unused);

/* Begins a search for the key's plans; it must be ended after an error, too. LM_E_MISSING if the library knows no
 * such graph. */
lm_status lm_cudnn_attention_search(const lm_cudnn_target *target, const lm_cudnn_attention_key *key,
                                    lm_cudnn_search *s);

/* Enqueues the plan on the handle's stream: forward writes OUT and LOG_SUM; backward reads those and
 * writes the others. data is NULL for what the pass does not know. */
lm_status lm_cudnn_attend(cudnnHandle_t handle, const lm_cudnn_plan *plan, const lm_cudnn_attention_key *key,
                          double scale, const void *const data[LM_CUDNN_ALL], void *workspace);
