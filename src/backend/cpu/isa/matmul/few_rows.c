#include "backend/cpu/isa/matmul/few_rows.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/elem.h"

/* Packs as wide as the registers: GCC keeps wider ones in memory. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
/* MOST rows are taken at once; more go through the part of B that is in the cache by then. SUMS columns at a time where
 * B's rows lie in one piece, from DEEP rows of it. */
enum { MOST = 4, SUMS = 4096, DEEP = 4 };
/* So many groups of B's rows are asked for before they are needed: the processor itself finds runs as short late. */
enum { AHEAD = 2 };
typedef uint16_t half_pack __attribute__((vector_size(LANES * sizeof(uint16_t)), unused));
typedef uint32_t bits_pack __attribute__((vector_size(LANES * sizeof(uint32_t)), unused));
typedef float float_pack __attribute__((vector_size(LANES * sizeof(float))));

LM_INLINE float sum_of(float_pack p) {
  float lane[LANES];
  memcpy(lane, &p, sizeof lane);
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; l++) lane[l] += lane[l + half];
  }
  return lane[0];
}

LM_INLINE float_pack load_F32(const float *from) {
  float_pack to;
  memcpy(&to, from, sizeof to);
  return to;
}

/* By instructions: of __builtin_convertvector GCC makes four. */
LM_INLINE float_pack load_BF16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (float_pack)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#elif defined(__AVX2__)
  return (float_pack)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
#else
  half_pack bits;
  memcpy(&bits, from, sizeof bits);
  return (float_pack)(__builtin_convertvector(bits, bits_pack) << 16);
#endif
}

LM_INLINE float_pack load_F16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (float_pack)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined(__AVX2__)
  return (float_pack)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
  float_pack to;
  for (int i = 0; i < LANES; i++) to[i] = lm_from_half(from[i]);
  return to;
#endif
}

#define LM_TEMPLATE "backend/cpu/isa/templates/few_rows.inc"
#define LM_E F32
#include LM_TEMPLATE
#undef LM_E
#define LM_E F16
#include LM_TEMPLATE
#undef LM_E
#define LM_E BF16
#include LM_TEMPLATE

const struct lm_few_rows_loops LM_ISA_NAME(lm_few_rows_loops) = {
    .product = {[LM_F32] = product_F32, [LM_F16] = product_F16, [LM_BF16] = product_BF16},
    .read = {[LM_F32] = read_F32, [LM_F16] = read_F16, [LM_BF16] = read_BF16},
};
