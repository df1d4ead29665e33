/* Shares code between the attention kernels: rows, tile counts, maxima, dropout's bits. */
#pragma once

#include "attention.h"
#include "philox.h"
#include "reduce.cuh"

template <class T>
LM_DEVICE T *lm_attention_row(const lm_attention_side &side, int64_t n, int64_t h, int64_t row) {
  return (T *)side.data + n * side.sample + h * side.head + row * side.row;
}

LM_HOST_DEVICE int64_t lm_attention_tiles_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

struct lm_attention_larger { /* ignores NaN, which reaches a row by its sum */
  template <class num>
  LM_DEVICE num operator()(num a, num b) const {
    return a > b || b != b ? a : b;
  }
};

/* Returns bit w set where dropout keeps the weight that word w of random block `number` decides. */
LM_DEVICE uint32_t lm_attention_keeps(const uint64_t *draw, uint32_t threshold, uint64_t number) {
  lm_philox_block block = lm_philox(draw[0], draw[1] + number);
  uint32_t bits = 0;
  LM_UNROLL
  for (int w = 0; w < 4; w++) bits |= (uint32_t)(block.word[w] >> 8 >= threshold) << w;
  return bits;
}
