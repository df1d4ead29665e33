/* Decides which elements dropout keeps, by their positions in a draw: element i takes word i % 4 of block offset + i /
 * 4, and is kept if the word's upper 24 bits reach a threshold. */
#pragma once

#include <math.h>

#include "philox.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef struct lm_dropout_params {
  lm_draw draw;
  int32_t threshold;
  double scale; /* factor of the elements that are kept */
} lm_dropout_params;

static inline lm_dropout_params lm_dropout_params_of(double p, lm_draw draw) {
  return (lm_dropout_params){.draw = draw, .threshold = (int32_t)ceil(p * 0x1p24), .scale = p < 1 ? 1 / (1 - p) : 0};
}

/* Returns the draw that a tensor of attention_draw holds. */
static inline lm_draw lm_draw_in(const lm_tensor *t) {
  const uint64_t *numbers = (const uint64_t *)t->data;
  return (lm_draw){.seed = numbers[0], .offset = numbers[1]};
}

/* Number of blocks drawn together; capacity for the words of n elements, whichever word of a block is the first. */
enum { LM_DRAWN_TOGETHER = 8 };
#define LM_DRAWN_CAPACITY(n) (4 * (((n) + 6) / 4 + LM_DRAWN_TOGETHER))

/* Writes the words of blocks from .. from + blocks - 1, each without its lowest `shift` bits. */
static inline __attribute__((always_inline)) void lm_drawn_words(lm_draw draw, uint64_t from, int64_t blocks, int shift,
                                                                 int32_t *scratch) {
#ifdef __AVX2__
  /* Each of four vectors has a word of four blocks, in 64 bits whose upper halves are undefined until the end: products
   * do not read them. Several sets of four run together, since each round waits for the last one. */
  enum { SETS = LM_DRAWN_TOGETHER / 4 };
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i next0 = _mm256_set1_epi64x(0x9E3779B9), next1 = _mm256_set1_epi64x(0xBB67AE85);
  for (int64_t b = 0; b < blocks; b += LM_DRAWN_TOGETHER) {
    __m256i k0 = _mm256_set1_epi64x((uint32_t)draw.seed), k1 = _mm256_set1_epi64x((int64_t)(draw.seed >> 32));
    __m256i c0[SETS], c1[SETS], c2[SETS], c3[SETS];
    for (int s = 0; s < SETS; s++) {
      c0[s] =
          _mm256_add_epi64(_mm256_set1_epi64x((int64_t)(from + (uint64_t)b) + 4 * s), _mm256_set_epi64x(3, 2, 1, 0));
      c1[s] = _mm256_srli_epi64(c0[s], 32), c2[s] = _mm256_setzero_si256(), c3[s] = c2[s];
    }
    for (int round = 0; round < 10; round++) {
      for (int s = 0; s < SETS; s++) {
        __m256i p0 = _mm256_mul_epu32(m0, c0[s]), p1 = _mm256_mul_epu32(m1, c2[s]);
        c0[s] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[s]), k0);
        c2[s] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[s]), k1);
        c1[s] = p1, c3[s] = p0;
      }
      k0 = _mm256_add_epi32(k0, next0), k1 = _mm256_add_epi32(k1, next1);
    }
    for (int s = 0; s < SETS; s++) {
      __m256i w01 = _mm256_blend_epi32(c0[s], _mm256_slli_epi64(c1[s], 32), 0xaa);
      __m256i w23 = _mm256_blend_epi32(c2[s], _mm256_slli_epi64(c3[s], 32), 0xaa);
      __m256i even = _mm256_srli_epi32(_mm256_unpacklo_epi64(w01, w23), shift); /* blocks 0 and 2 */
      __m256i odd = _mm256_srli_epi32(_mm256_unpackhi_epi64(w01, w23), shift);
      __m256i *to = (__m256i *)(scratch + 4 * b) + 2 * s;
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
#else
  for (int64_t b = 0; b < blocks; b++) {
    lm_philox_block block = lm_philox(draw.seed, from + (uint64_t)b);
    for (int lane = 0; lane < 4; lane++) scratch[4 * b + lane] = (int32_t)(block.word[lane] >> shift);
  }
#endif
}

/* Writes the upper 24 bits of the words that elements first .. first + n - 1 take to `scratch`, and returns their
 * beginning in it. */
static inline const int32_t *lm_drawn_bits(lm_draw draw, int64_t first, int64_t n, int32_t *scratch) {
  lm_drawn_words(draw, draw.offset + (uint64_t)first / 4, (first % 4 + n + 3) / 4, 8, scratch);
  return scratch + first % 4;
}
