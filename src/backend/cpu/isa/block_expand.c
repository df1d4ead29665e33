#include "backend/cpu/isa/block_expand.h"

#include "backend/cpu/isa/block_runs.h"

LM_INLINE void expand(const lm_block_kind *k, int64_t n, const uint8_t *block, float *out) {
  for (int64_t i = 0; i < n; i++, block += k->bytes) {
    float scale[LM_BLOCK_GROUPS], minimum[LM_BLOCK_GROUPS];
    lm_block_scales(k, block, scale, minimum);
#pragma GCC unroll 8
    for (int at = 0; at < k->elements; at += LM_RUN, out += LM_RUN) {
      const lm_bytes_32 q = lm_run_integers(k, block, at);
      for (int l = 0; l < LM_RUN; l++) {
        const int g = (at + l) / k->group;
        const float v = scale[g] * (float)(q[l] - k->zero);
        out[l] = lm_block_has_minima(k) ? v - minimum[g] : v;
      }
    }
  }
}

#define X(name) \
  static void expand_##name(int64_t n, const uint8_t *block, float *out) { expand(&lm_block_##name, n, block, out); }
LM_BLOCK_KINDS(X)
#undef X

const struct lm_block_expand_loops LM_ISA_NAME(lm_block_expand_loops) = {
#define X(name) expand_##name,
    .expand = {LM_BLOCK_KINDS(X)},
#undef X
};
