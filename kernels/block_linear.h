/* Expands rows of quantized blocks, and multiplies by them. Functions enqueue on the stream, return a cudaError_t. For
 * C and CUDA. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* Writes the numbers of `words` times four elements of blocks of a kind, a position in block_kinds.h. Blocks begin at a
 * multiple of 16 bytes, as those of the other function do. */
LM_C int lm_k_expand_blocks(int kind, const void *blocks, float *to, int64_t words, void *stream);

/* A product of x [rows, n] and weight [outs, n], of blocks: y [rows, outs], with a bias for each output or NULL. n is a
 * multiple of 32. steps: n bytes for each row; scale: a float for each 32 elements of a row. */
typedef struct lm_block_linear_job {
  int kind;
  int64_t rows, n, outs;
  const float *x, *bias;
  const uint8_t *weight;
  float *y;
  int8_t *steps;
  float *scale;
} lm_block_linear_job;

/* Rounds x to 8 bits, as the CPU does (backend/cpu/isa/block_product.h), and multiplies: a warp for each output of up
 * to LM_BLOCK_ROWS rows. */
LM_C int lm_k_block_linear(const lm_block_linear_job *job, void *stream);
enum { LM_BLOCK_ROWS = 8 };
