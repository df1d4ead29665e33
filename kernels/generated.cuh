/* Defines what kernels written at run time use (backend/cuda/group_text.c). */
#pragma once

#include "rtc.h"

#include "philox.h"
#include "pointwise_elements.cuh"
#include "vectors.cuh"

/* Inputs of a row's function. */
template <class num, int N>
struct lm_inputs {
  num of[N];
};

/* Returns word i of a draw, without an array that is indexed. */
LM_DEVICE uint32_t lm_drawn_word(const lm_blocks_drawn *d, int64_t i) {
  lm_philox_block b = lm_block_of(d, i / 4);
  return i & 2 ? i & 1 ? b.word[3] : b.word[2] : i & 1 ? b.word[1] : b.word[0];
}
