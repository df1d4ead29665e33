/* Loads a register of float or double from n elements of memory, and stores it, for rows that do not fill it. The
 * 16-bit floats are loaded as floats. */
#pragma once

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/float_pack.h"

typedef lm_float_pack lm_lanes_F32, lm_lanes_F16, lm_lanes_BF16;
typedef double lm_lanes_F64 __attribute__((vector_size(LM_PACK * sizeof(float))));
typedef uint16_t lm_half_pack __attribute__((vector_size(LM_PACK * sizeof(uint16_t)), unused));
typedef uint32_t lm_bits_pack __attribute__((vector_size(LM_PACK * sizeof(uint32_t)), unused));

LM_INLINE lm_lanes_F32 lm_load_F32(const float *from) { return lm_pack_load(from); }

LM_INLINE lm_lanes_F64 lm_load_F64(const double *from) {
  lm_lanes_F64 to;
  memcpy(&to, from, sizeof to);
  return to;
}

/* Uses intrinsics: GCC makes four instructions of __builtin_convertvector. */
LM_INLINE lm_lanes_BF16 lm_load_BF16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (lm_float_pack)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#elif defined(__AVX2__)
  return (lm_float_pack)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
#else
  lm_half_pack bits;
  memcpy(&bits, from, sizeof bits);
  return (lm_float_pack)(__builtin_convertvector(bits, lm_bits_pack) << 16);
#endif
}

LM_INLINE lm_lanes_F16 lm_load_F16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (lm_float_pack)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined(__AVX2__)
  return (lm_float_pack)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
  lm_float_pack to = {0};
  for (int i = 0; i < LM_PACK; i++) to[i] = lm_from_half(from[i]);
  return to;
#endif
}

/* Load the first n elements, and zeros; memory after them is not read. */
#if defined(__AVX512F__)
LM_INLINE __mmask16 lm_first_lanes(int n) { return (__mmask16)((1u << n) - 1); }
#elif defined(__AVX2__)
LM_INLINE __m256i lm_first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LM_INLINE __m256i lm_first_lanes_F64(int n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
#endif

LM_INLINE lm_lanes_F32 lm_load_part_F32(const float *from, int n) {
#if defined(__AVX512F__)
  return (lm_lanes_F32)_mm512_maskz_loadu_ps(lm_first_lanes(n), from);
#elif defined(__AVX2__)
  return (lm_lanes_F32)_mm256_maskload_ps(from, lm_first_lanes(n));
#else
  lm_lanes_F32 to = {0};
  for (int i = 0; i < n; i++) to[i] = from[i];
  return to;
#endif
}

LM_INLINE lm_lanes_F64 lm_load_part_F64(const double *from, int n) {
#if defined(__AVX512F__)
  return (lm_lanes_F64)_mm512_maskz_loadu_pd((__mmask8)lm_first_lanes(n), from);
#elif defined(__AVX2__)
  return (lm_lanes_F64)_mm256_maskload_pd(from, lm_first_lanes_F64(n));
#else
  lm_lanes_F64 to = {0};
  for (int i = 0; i < n; i++) to[i] = from[i];
  return to;
#endif
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
LM_INLINE lm_lanes_BF16 lm_load_part_BF16(const uint16_t *from, int n) {
  return (lm_float_pack)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lm_first_lanes(n), from)), 16);
}

LM_INLINE lm_lanes_F16 lm_load_part_F16(const uint16_t *from, int n) {
  return (lm_float_pack)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lm_first_lanes(n), from));
}
#else
#define LM_LOAD_PART_OF_HALVES(dtype)                                            \
  LM_INLINE lm_lanes_##dtype lm_load_part_##dtype(const uint16_t *from, int n) { \
    uint16_t part[LM_PACK] = {0};                                                \
    if (n == LM_PACK) return lm_load_##dtype(from);                              \
    for (int i = 0; i < n; i++) part[i] = from[i];                               \
    return lm_load_##dtype(part);                                                \
  }
LM_LOAD_PART_OF_HALVES(BF16)
LM_LOAD_PART_OF_HALVES(F16)
#endif

/* Stores the first n elements. AVX2's own stores under a mask take 12 cycles on some processors. */
LM_INLINE void lm_store_part_F32(float *to, lm_lanes_F32 v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, lm_first_lanes(n), (__m512)v);
#elif defined(__AVX2__)
  __m128 low = _mm256_castps256_ps128((__m256)v);
  if (n == LM_PACK) {
    _mm256_storeu_ps(to, (__m256)v);
    return;
  }
  if (n & 4) {
    _mm_storeu_ps(to, low);
    low = _mm256_extractf128_ps((__m256)v, 1);
    to += 4;
  }
  if (n & 2) {
    _mm_storel_pi((__m64 *)to, low);
    low = _mm_movehl_ps(low, low);
    to += 2;
  }
  if (n & 1) _mm_store_ss(to, low);
#else
  for (int i = 0; i < n; i++) to[i] = v[i];
#endif
}

LM_INLINE void lm_store_part_F64(double *to, lm_lanes_F64 v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_pd(to, (__mmask8)lm_first_lanes(n), (__m512d)v);
#elif defined(__AVX2__)
  __m128d low = _mm256_castpd256_pd128((__m256d)v);
  if (n == LM_PACK / 2) {
    _mm256_storeu_pd(to, (__m256d)v);
    return;
  }
  if (n & 2) {
    _mm_storeu_pd(to, low);
    low = _mm256_extractf128_pd((__m256d)v, 1);
    to += 2;
  }
  if (n & 1) _mm_store_sd(to, low);
#else
  for (int i = 0; i < n; i++) to[i] = v[i];
#endif
}

/* Adds adjacent elements, a's and then b's. */
#define LM_EVEN_16(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define LM_ODD_16(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define LM_PAIRS_16(a, b) (LM_EVEN_16(a, b) + LM_ODD_16(a, b))
#define LM_EVEN_8(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define LM_ODD_8(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define LM_PAIRS_8(a, b) (LM_EVEN_8(a, b) + LM_ODD_8(a, b))
#define LM_PAIRS_4(a, b) (__builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7))
#define LM_PAIRS_2(a, b) (__builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3))

#if defined(__AVX512F__)
LM_INLINE lm_lanes_F32 lm_pairs_F32(lm_lanes_F32 a, lm_lanes_F32 b) { return LM_PAIRS_16(a, b); }
LM_INLINE lm_lanes_F64 lm_pairs_F64(lm_lanes_F64 a, lm_lanes_F64 b) { return LM_PAIRS_8(a, b); }
#elif defined(__AVX2__)
/* Add within halves of the register, whose sums are then put in order. */
LM_INLINE lm_lanes_F32 lm_pairs_F32(lm_lanes_F32 a, lm_lanes_F32 b) {
  const lm_lanes_F32 sum = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
                           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  return __builtin_shufflevector(sum, sum, 0, 1, 4, 5, 2, 3, 6, 7);
}
LM_INLINE lm_lanes_F64 lm_pairs_F64(lm_lanes_F64 a, lm_lanes_F64 b) {
  const lm_lanes_F64 sum = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  return __builtin_shufflevector(sum, sum, 0, 2, 1, 3);
}
#else
LM_INLINE lm_lanes_F32 lm_pairs_F32(lm_lanes_F32 a, lm_lanes_F32 b) { return LM_PAIRS_4(a, b); }
LM_INLINE lm_lanes_F64 lm_pairs_F64(lm_lanes_F64 a, lm_lanes_F64 b) { return LM_PAIRS_2(a, b); }
#endif
#define lm_pairs_F16 lm_pairs_F32
#define lm_pairs_BF16 lm_pairs_F32

/* Moves runs of k elements to the beginnings of runs of `length`, a larger power of two, with zeros between them; for 8
 * lanes or more, since fewer hold no two such runs. */
typedef struct lm_spread {
#if defined(__AVX512F__)
  __m512i from;
  __mmask16 lanes;
#elif defined(__AVX2__)
  __m256i from, lanes;
#else
  char unused;
#endif
} lm_spread;

LM_INLINE lm_spread lm_spread_of(int k, int length, bool doubles) {
  lm_spread s = {0};
#if defined(__AVX512F__)
  int32_t from[16];
  int64_t wide[8];
  for (int i = 0; i < 16; i++) {
    from[i] = i / length * k + i % length;
    if (i < 8) wide[i] = from[i];
    s.lanes |= (__mmask16)((i % length < k) << i);
  }
  s.from = doubles ? _mm512_loadu_si512(wide) : _mm512_loadu_si512(from);
#elif defined(__AVX2__)
  int32_t from[8], lanes[8];
  (void)doubles;
  for (int i = 0; i < 8; i++) {
    from[i] = (i / length * k + i % length) & 7;
    lanes[i] = i % length < k ? -1 : 0;
  }
  s.from = _mm256_loadu_si256((const void *)from), s.lanes = _mm256_loadu_si256((const void *)lanes);
#else
  (void)k, (void)length, (void)doubles;
#endif
  return s;
}

LM_INLINE lm_lanes_F32 lm_spread_F32(lm_lanes_F32 v, const lm_spread *s) {
#if defined(__AVX512F__)
  return (lm_lanes_F32)_mm512_maskz_permutexvar_ps(s->lanes, s->from, (__m512)v);
#elif defined(__AVX2__)
  return (lm_lanes_F32)_mm256_and_ps(_mm256_permutevar8x32_ps((__m256)v, s->from), _mm256_castsi256_ps(s->lanes));
#else
  (void)s;
  return v;
#endif
}

LM_INLINE lm_lanes_F64 lm_spread_F64(lm_lanes_F64 v, const lm_spread *s) {
#if defined(__AVX512F__)
  return (lm_lanes_F64)_mm512_maskz_permutexvar_pd((__mmask8)s->lanes, s->from, (__m512d)v);
#else
  (void)s;
  return v;
#endif
}
#define lm_spread_F16 lm_spread_F32
#define lm_spread_BF16 lm_spread_F32
