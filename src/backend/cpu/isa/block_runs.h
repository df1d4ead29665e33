/* Reads the integers of quantized blocks into registers, a run of elements at a time. */
#pragma once

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/elem.h"
#include "blocks.h"

enum { LM_RUN = 32 }; /* elements: one to a byte of a register */

typedef uint8_t lm_bytes_32 __attribute__((vector_size(32)));
typedef uint16_t lm_pairs_16 __attribute__((vector_size(32)));
typedef uint32_t lm_words_8 __attribute__((vector_size(32)));
typedef uint32_t lm_words_4 __attribute__((vector_size(16), unused));
typedef int32_t lm_int32_8 __attribute__((vector_size(32), unused));

#define LM_LOAD_AS(type, from)            \
  ({                                      \
    type loaded;                          \
    memcpy(&loaded, from, sizeof loaded); \
    loaded;                               \
  })

/* Returns fields of the LM_RUN elements from `first` on, shifted left by `up`; all but block is constant in each call.
 */
LM_INLINE lm_bytes_32 lm_run_fields(const uint8_t *block, lm_block_bits b, int first, int up) {
  const int each = b.span * 8 / b.width, part = first % each, down = part / b.span * b.width - up;
  const uint8_t *from = block + b.at + first / each * b.span + part % b.span,
                mask = (uint8_t)(((1 << b.width) - 1) << up);
  if (b.span >= LM_RUN) {
    const lm_pairs_16 all = LM_LOAD_AS(lm_pairs_16, from);
    return (lm_bytes_32)(down < 0 ? all << -down : all >> down) & mask;
  }
  if (b.span == 16 && b.width == 4 && up == 0) {
#ifdef __AVX2__
    const lm_words_8 both = (lm_words_8)_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)from));
#else
    const lm_words_4 half = LM_LOAD_AS(lm_words_4, from);
    const lm_words_8 both = __builtin_shufflevector(half, half, 0, 1, 2, 3, 0, 1, 2, 3);
#endif
    return (lm_bytes_32)(both >> (lm_words_8){0, 0, 0, 0, 4, 4, 4, 4}) & mask;
  }
  if (b.span == 1 && b.width == 1) { /* a bit of each: bytes are repeated, and their bits selected */
    const uint8_t bit[LM_RUN] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                                 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const lm_bytes_32 all = (lm_bytes_32)((lm_words_8){0} + LM_LOAD_AS(uint32_t, from));
    const lm_bytes_32 each = __builtin_shufflevector(all, all, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 18, 18,
                                                     18, 18, 18, 18, 18, 18, 19, 19, 19, 19, 19, 19, 19, 19);
    return (lm_bytes_32)((each & LM_LOAD_AS(lm_bytes_32, bit)) != 0) & mask;
  }
  lm_bytes_32 out;
  for (int i = 0; i < LM_RUN; i++) out[i] = (uint8_t)(lm_block_field(block, b, first + i) << up);
  return out;
}

/* Returns the integers of the LM_RUN elements from `first` on, with zero not subtracted. */
LM_INLINE lm_bytes_32 lm_run_integers(const lm_block_kind *k, const uint8_t *block, int first) {
  lm_bytes_32 q = lm_run_fields(block, k->low, first, 0);
  if (k->high.width) q |= lm_run_fields(block, k->high, first, k->low.width);
  if (!k->table[0]) return k->flip ? q ^ (uint8_t)k->flip : q;
#ifdef __AVX2__
  return (lm_bytes_32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)k->table)),
                                          (__m256i)q);
#else
  for (int i = 0; i < LM_RUN; i++) q[i] = (uint8_t)lm_block_entry(k, q[i]);
  return q;
#endif
}

/* ---- runs of 64 elements, of one block or of two that follow each other */
#ifdef __AVX512BW__
typedef uint8_t lm_bytes_64 __attribute__((vector_size(64)));
typedef uint16_t lm_pairs_32 __attribute__((vector_size(64)));

/* Returns the bytes with fields of 32 elements from `first` on, in order except for shifts. */
LM_INLINE __m256i lm_run_bytes(const lm_block_kind *k, const uint8_t *block, lm_block_bits b, int first) {
  const int each = b.span * 8 / b.width, at = first % k->elements;
  block += first / k->elements * k->bytes + b.at + at / each * b.span + at % each % b.span;
  return b.span < LM_RUN ? _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)block))
                         : _mm256_loadu_si256((const void *)block);
}

/* Returns fields of the 64 elements from `first` on, shifted left by `up`. */
LM_INLINE lm_bytes_64 lm_wide_fields(const lm_block_kind *k, const uint8_t *block, lm_block_bits b, int first, int up) {
#define EIGHT(x) x, x, x, x, x, x, x, x
  const lm_pairs_32 element = {EIGHT(0), EIGHT(16), EIGHT(32), EIGHT(48)};
#undef EIGHT
  if (b.span == 1) { /* a bit of each */
    const uint8_t *from = block + first / k->elements * k->bytes + b.at;
    const uint64_t bits = LM_LOAD_AS(uint32_t, from) | (uint64_t)LM_LOAD_AS(uint32_t, from + k->bytes) << 32;
    return (lm_bytes_64)_mm512_maskz_set1_epi8(bits, (char)(1 << up));
  }
  const __m512i low = _mm512_castsi256_si512(lm_run_bytes(k, block, b, first));
  const lm_pairs_32 v = (lm_pairs_32)_mm512_inserti64x4(low, lm_run_bytes(k, block, b, first + LM_RUN), 1);
  const int each = b.span * 8 / b.width, elements = k->elements;
  const lm_pairs_32 down =
      (element + (uint16_t)first) % (uint16_t)elements % (uint16_t)each / (uint16_t)b.span * (uint16_t)b.width;
  const uint16_t lift = (uint16_t)up;
  return (lm_bytes_64)(down[31] > up ? v >> (down - lift) : v << (lift - down)) & (uint8_t)(((1 << b.width) - 1) << up);
}

/* Returns the integers of the 64 elements from `first` on, with zero not subtracted. */
LM_INLINE lm_bytes_64 lm_wide_integers(const lm_block_kind *k, const uint8_t *block, int first) {
  lm_bytes_64 q = lm_wide_fields(k, block, k->low, first, 0);
  if (k->high.width) q |= lm_wide_fields(k, block, k->high, first, k->low.width);
  if (!k->table[0]) return k->flip ? q ^ (uint8_t)k->flip : q;
  return (lm_bytes_64)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)k->table)), (__m512i)q);
}
#endif
