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

/* ---- registers of 64 elements of a chunk of 256. Where four bits of an element are in 16 bytes, registers 2 i and
 * 2 i + 1 have the first and the second half of each of the same four groups of 32, so that they share scales; others
 * have 64 elements in order. */
#ifdef __AVX512BW__
enum { LM_WIDE = 64, LM_QUARTER = 16 };

typedef uint8_t lm_bytes_64 __attribute__((vector_size(64)));
typedef uint16_t lm_pairs_32 __attribute__((vector_size(64)));

LM_INLINE bool lm_shares_scales(const lm_block_kind *k) { return k->low.span == LM_QUARTER; }

/* Returns the first element of quarter q of register i. */
LM_INLINE int lm_quarter(const lm_block_kind *k, int i, int q) {
  return lm_shares_scales(k) ? (i / 2 * 4 + q) * LM_RUN + i % 2 * LM_QUARTER : i * LM_WIDE + q * LM_QUARTER;
}

/* Returns the bytes from which fields of the 16 elements from `first` on start. */
LM_INLINE const uint8_t *lm_field_bytes(const lm_block_kind *k, const uint8_t *block, lm_block_bits b, int first) {
  const int each = b.span * 8 / b.width, at = first % k->elements;
  return block + first / k->elements * k->bytes + b.at + at / each * b.span + at % each % b.span;
}

/* Returns fields of register i, shifted left by `up`. */
LM_INLINE lm_bytes_64 lm_wide_fields(const lm_block_kind *k, const uint8_t *block, lm_block_bits b, int i, int up) {
  const uint8_t *from[4];
  lm_pairs_32 down;
  for (int q = 0; q < 4; q++) from[q] = lm_field_bytes(k, block, b, lm_quarter(k, i, q));
  if (b.span == 1) { /* a bit of each */
    uint64_t bits = 0;
    for (int q = 0; q < 4; q++) bits |= (uint64_t)LM_LOAD_AS(uint16_t, from[q]) << q * LM_QUARTER;
    return (lm_bytes_64)_mm512_maskz_set1_epi8(bits, (char)(1 << up));
  }
  for (int w = 0; w < 32; w++) {
    const int at = lm_quarter(k, i, w / 8) % k->elements % (b.span * 8 / b.width);
    down[w] = (uint16_t)(at / b.span * b.width);
  }
  __m512i all;
  if (b.span >= LM_RUN) {
    all = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)from[0]));
    all = _mm512_inserti64x4(all, _mm256_loadu_si256((const void *)from[2]), 1);
  } else {
    all = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)from[0]));
    for (int q = 1; q < 4; q++)
      all = _mm512_mask_broadcast_i32x4(all, (__mmask16)(15 << 4 * q), _mm_loadu_si128((const void *)from[q]));
  }
  const lm_pairs_32 v = (lm_pairs_32)all;
  const uint16_t lift = (uint16_t)up;
  return (lm_bytes_64)(down[31] > up ? v >> (down - lift) : v << (lift - down)) & (uint8_t)(((1 << b.width) - 1) << up);
}

/* Returns the integers of register i, with zero not subtracted. */
LM_INLINE lm_bytes_64 lm_wide_integers(const lm_block_kind *k, const uint8_t *block, int i) {
  lm_bytes_64 q = lm_wide_fields(k, block, k->low, i, 0);
  if (k->high.width) q |= lm_wide_fields(k, block, k->high, i, k->low.width);
  if (!k->table[0]) return k->flip ? q ^ (uint8_t)k->flip : q;
  return (lm_bytes_64)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)k->table)), (__m512i)q);
}
#endif
