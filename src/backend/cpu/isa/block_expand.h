/* Declares the conversion of quantized blocks to floats. */
#pragma once

#include "backend/cpu/isa.h"
#include "blocks.h"

struct lm_block_expand_loops {
  /* Writes the elements of n blocks, for each kind. */
  void (*expand[LM_BLOCK_KINDS_COUNT])(int64_t n, const uint8_t *block, float *out);
};

LM_ISA_DECLARE(struct lm_block_expand_loops, lm_block_expand_loops);
