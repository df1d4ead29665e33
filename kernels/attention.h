/* Attention in blocks: softmax along keys as they come (Milakov and Gimelshein 2018, Dao 2023). Functions enqueue on
 * the stream and return a cudaError_t. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* [samples, heads, rows, numbers]: strides in elements of all but the last dim, which is dense. */
typedef struct lm_attention_side {
  void *data;
  int64_t sample, head, row;
} lm_attention_side;

typedef struct lm_attention_job {
  int dtype;                                 /* of all sides; floating */
  int tf32;                                  /* float is rounded to TF32 for products */
  int causal;                                /* query i sees the keys up to i */
  int packed;                                /* every row of every side is packs of 16 bytes, and begins at one */
  int64_t samples, heads, key_heads, shared; /* heads of queries and of keys; how many of queries have one's keys */
  int64_t queries, keys, width, value_width; /* numbers in a query or key, and in a value */
  double scale;
  lm_attention_side query, key, value, out;
  void *log_sum; /* [samples, heads, queries], float or, for double, double: log sum exp(scores); inf: nothing seen */
  const void *mask; /* NULL, or bool (false: not seen) or numbers of dtype, which are added; one for each score */
  int mask_is_bool;
  int64_t mask_stride[4];
  /* Dropout of weights, by their place in [samples, heads, queries, keys]: NULL, or device memory: seed, offset. A
   * weight stays where the upper 24 bits of its word reach the threshold, and is multiplied by kept. */
  const uint64_t *draw;
  uint32_t threshold;
  double kept;
  /* backward: dots, as log_sum, is written and then read */
  lm_attention_side grad, dquery, dkey, dvalue;
  void *dots;
} lm_attention_job;

int lm_k_attention(const lm_attention_job *job, void *stream);          /* writes out, log_sum */
int lm_k_attention_backward(const lm_attention_job *job, void *stream); /* writes dquery, dkey, dvalue */
/* Of those the parts on tensor cores: float16, bfloat16 and TF32; the second one when dots are written. */
int lm_k_attention_mma(const lm_attention_job *job, void *stream);
int lm_k_attention_mma_backward(const lm_attention_job *job, void *stream);

/* to[0] = seed, to[1] = offset + *extra, if there is one */
int lm_k_attention_draw(uint64_t *to, uint64_t seed, uint64_t offset, const uint64_t *extra, void *stream);
/* y = x where the draw keeps it, times kept; else 0. n contiguous elements of a floating dtype. */
int lm_k_dropout_by_draw(int dtype, const void *x, void *y, int64_t n, const uint64_t *draw, uint32_t threshold,
                         double kept, void *stream);

#ifdef __cplusplus
}
#endif
