/* Multiplies packs of integers of 16 bits by one instruction, which adds the two products of each pair. */
#pragma once

#include <string.h>
#ifdef __SSE4_1__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/float_pack.h"

typedef int16_t lm_int16_pack __attribute__((vector_size(2 * LM_PACK * sizeof(int16_t))));
typedef int32_t lm_int32_pack __attribute__((vector_size(LM_PACK * sizeof(int32_t))));

/* Returns a[2l] b[2l] + a[2l + 1] b[2l + 1] in lane l. */
LM_INLINE lm_int32_pack lm_pack_pairs(lm_int16_pack a, lm_int16_pack b) {
#if defined(__AVX512BW__)
  return (lm_int32_pack)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (lm_int32_pack)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE4_1__)
  return (lm_int32_pack)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  lm_int32_pack sums;
  for (int l = 0; l < LM_PACK; l++) sums[l] = a[2 * l] * b[2 * l] + a[2 * l + 1] * b[2 * l + 1];
  return sums;
#endif
}
