/* Computes attention in blocks, with a softmax that is updated as keys come (Milakov and Gimelshein 2018, Dao 2023).
 * Functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* An operand [samples, heads, rows, numbers]: strides in elements of all dims except the last, which is dense. */
typedef struct lm_attention_side {
  void *data;
  int64_t sample, head, row;
} lm_attention_side;

typedef struct lm_attention_job {
  int dtype;                                 /* dtype of all sides; floating-point */
  int tf32;                                  /* float is rounded to TF32 for products */
  int causal;                                /* query i sees the keys up to i */
  int in_packs;                              /* every row of every side begins at and consists of packs of 16 bytes */
  int64_t samples, heads, key_heads, shared; /* heads of queries, heads of keys; query heads for each key head */
  int64_t queries, keys, width, value_width; /* width: numbers in a query or key; value_width: numbers in a value */
  double scale;
  lm_attention_side query, key, value, out;
  void *log_sum; /* [samples, heads, queries]: log sum exp(scores), or inf (no key seen); float, or double for double */
  const void *mask; /* NULL, or an element for each score: bool (false: hidden), or of dtype, which is added */
  int mask_is_bool;
  int64_t mask_stride[4];
  /* Dropout of weights, by their index in [samples, heads, queries, keys]: NULL (none), or device memory: seed, offset.
   * A weight is kept and multiplied by `keep_scale` if the upper 24 bits of its random word reach the threshold. */
  const uint64_t *draw;
  uint32_t threshold;
  double keep_scale;
  /* backward only; dots: scratch memory of log_sum's shape and type */
  lm_attention_side grad, dquery, dkey, dvalue;
  void *dots;
} lm_attention_job;

LM_C int lm_k_attention(const lm_attention_job *job, void *stream);          /* writes out, log_sum */
LM_C int lm_k_attention_backward(const lm_attention_job *job, void *stream); /* writes dquery, dkey, dvalue */
/* Compute attention on tensor cores, for float16, bfloat16 and TF32; the backward pass reads job->dots. */
LM_C int lm_k_attention_mma(const lm_attention_job *job, void *stream);
LM_C int lm_k_attention_mma_backward(const lm_attention_job *job, void *stream);

/* Sets to[0] = seed and to[1] = offset + *extra; extra may be NULL. */
LM_C int lm_k_attention_draw(uint64_t *to, uint64_t seed, uint64_t offset, const uint64_t *extra, void *stream);
/* Sets y to x times `keep_scale` where the draw keeps an element, else to 0; n contiguous elements of a floating dtype.
 */
LM_C int lm_k_dropout_by_draw(int dtype, const void *x, void *y, int64_t n, const uint64_t *draw, uint32_t threshold,
                              double keep_scale, void *stream);
