#include "backend/cpu/isa/dropout.h"

#include "backend/cpu/isa/elem.h"
#include "philox.h"

enum { BLOCKS = 64 };

/* Word `lane` of block b lands at words[4 * b + lane]: element order. */
static void random_words(lm_draw draw, int64_t first, uint32_t *restrict words) {
  for (int b = 0; b < BLOCKS; b++) {
    lm_philox_block block = lm_philox(draw.seed, draw.offset + (uint64_t)(first + b));
    for (int lane = 0; lane < 4; lane++) words[4 * b + lane] = block.word[lane];
  }
}

#define DROPOUT(E)                                                                                                  \
  static void dropout_##E(const void *x_, void *y_, uint8_t *restrict keep, int64_t from, int64_t to, lm_draw draw, \
                          uint32_t threshold, double scale_) {                                                      \
    const lm_elem_##E *restrict x = x_;                                                                             \
    lm_elem_##E *restrict y = y_;                                                                                   \
    lm_acc_##E scale = (lm_acc_##E)scale_;                                                                          \
    uint32_t words[4 * BLOCKS];                                                                                     \
    for (int64_t i0 = from; i0 < to; i0 += 4 * BLOCKS) {                                                            \
      int64_t n = to - i0 < 4 * BLOCKS ? to - i0 : 4 * BLOCKS;                                                      \
      random_words(draw, i0 / 4, words);                                                                            \
      for (int64_t i = 0; i < n; i++) {                                                                             \
        uint32_t kept = words[i] >> 8 >= threshold;                                                                 \
        keep[i0 + i] = (uint8_t)kept;                                                                               \
        y[i0 + i] = lm_store_##E(kept ? lm_load_##E(x[i0 + i]) * scale : 0);                                        \
      }                                                                                                             \
    }                                                                                                               \
  }
DROPOUT(F16)
DROPOUT(BF16)
DROPOUT(F32)
DROPOUT(F64)

const struct lm_dropout_loops LM_ISA_NAME(lm_dropout_loops) = {
    {[LM_F16] = dropout_F16, [LM_BF16] = dropout_BF16, [LM_F32] = dropout_F32, [LM_F64] = dropout_F64}};
