/* Converts blocks of LM_LANES halves to floats and back. Always inline: a block stays in registers if nothing takes its
 * address. */
#pragma once

#include "backend/cpu/isa/lanes.h"
#include "backend/cpu/isa/pointwise.h"

LM_INLINE void lm_block_get_F16(float *block, const uint16_t *src) {
  LM_UNROLL for (int i = 0; i < LM_LANES; i += LM_PACK) lm_pack_store(block + i, lm_load_F16(src + i));
}

LM_INLINE void lm_block_get_BF16(float *block, const uint16_t *src) {
  LM_UNROLL for (int i = 0; i < LM_LANES; i += LM_PACK) lm_pack_store(block + i, lm_load_BF16(src + i));
}

LM_INLINE void lm_block_put_F16(uint16_t *dst, const float *block) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)dst, _mm512_cvtps_ph(_mm512_loadu_ps(block), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  LM_UNROLL
  for (int i = 0; i < LM_LANES; i += 8) {
    _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(block + i), _MM_FROUND_TO_NEAREST_INT));
  }
#else
#pragma omp simd
  for (int i = 0; i < LM_LANES; i++) dst[i] = lm_to_half(block[i]);
#endif
}

/* Rounds a vector as lm_to_bf16 does, to the upper halves of its elements; the lower ones are undefined. */
#if defined(__AVX512F__)
LM_INLINE __m512i lm_upper_bf16(const float *block) {
  const __m512 value = _mm512_loadu_ps(block);
  const __m512i bits = _mm512_castps_si512(value),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
#elif defined(__AVX2__)
LM_INLINE __m256i lm_upper_bf16(const float *block) {
  const __m256 value = _mm256_loadu_ps(block);
  const __m256i bits = _mm256_castps_si256(value),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
}
#endif

LM_INLINE void lm_block_put_BF16(uint16_t *dst, const float *block) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi32_epi16(_mm512_srli_epi32(lm_upper_bf16(block), 16)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_srli_epi32(lm_upper_bf16(block), 16),
                high = _mm256_srli_epi32(lm_upper_bf16(block + 8), 16);
  const __m256i packed = _mm256_packus_epi32(low, high); /* packs within each 128-bit lane */
  _mm256_storeu_si256((__m256i *)dst, _mm256_permute4x64_epi64(packed, 0xd8));
#else
#pragma omp simd
  for (int i = 0; i < LM_LANES; i++) dst[i] = lm_to_bf16(block[i]);
#endif
}
