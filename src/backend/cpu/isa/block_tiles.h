/* Declares products of many rows, rounded to bfloat16, with rows of quantized blocks by tiles (AMX). */
#pragma once

#include "backend/cpu/isa.h"
#include "blocks.h"

/* Rows of x, and outputs, of one step. Outputs of one call are up to LM_TILE_OUTS, rows up to LM_TILE_ROWS. */
enum { LM_TILE_STEP = 32, LM_TILE_OUTS = 128, LM_TILE_ROWS = 512 };

struct lm_block_tile_loops {
  /* Asks the kernel for tiles. Returns false if the processor or the kernel has none. NULL below the level that has
   * them. */
  bool (*start)(void);
  /* Rounds LM_TILE_STEP rows of x of n elements, of which the first `rows` exist, to `to` of as many elements of 16
   * bits. Numbers that are not finite become NaN. */
  void (*pack)(int64_t n, int rows, const float *x, uint16_t *to);
  /* Computes y[r * y_row + j] = the product of packed row r of x and row j of weight, plus bias[j]; bias may be NULL.
   * scratch has LM_TILE_SCRATCH bytes. The sum of a row does not depend on the others. */
  void (*product)(int kind, int rows, int outs, int64_t n, const uint16_t *x, const uint8_t *weight, const float *bias,
                  float *y, int64_t y_row, void *scratch);
};

LM_ISA_DECLARE(struct lm_block_tile_loops, lm_block_tile_loops);

/* Elements of rows that are expanded at a time, and the bytes of these and of sums. */
enum { LM_TILE_CHUNK = 512, LM_TILE_SCRATCH = LM_TILE_OUTS * (LM_TILE_CHUNK * 2 + LM_TILE_ROWS * 4) };
