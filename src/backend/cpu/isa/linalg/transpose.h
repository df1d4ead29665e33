/* Transposes squares of numbers in registers, rows of 32 bytes: 8 of 8 floats, or 4 of 4 doubles. The halves of rows
 * change positions as they are loaded or stored, so that no shuffle crosses them. */
#pragma once

#include <stddef.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

typedef float lm_row_F32 __attribute__((vector_size(32), aligned(4)));
typedef double lm_row_F64 __attribute__((vector_size(32), aligned(8)));
typedef float lm_half_F32 __attribute__((vector_size(16), aligned(4)));
typedef double lm_half_F64 __attribute__((vector_size(16), aligned(8)));

/* Load two halves as a row, in one step that compilers do not find. */
#ifdef __AVX__
#define LM_ROW_OF_F32(low, high) \
  (lm_row_F32) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1)
#define LM_ROW_OF_F64(low, high) \
  (lm_row_F64) _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(low)), _mm_loadu_pd(high), 1)
#else
#define LM_ROW_OF_F32(low, high) \
  __builtin_shufflevector(*(const lm_half_F32 *)(low), *(const lm_half_F32 *)(high), 0, 1, 2, 3, 4, 5, 6, 7)
#define LM_ROW_OF_F64(low, high) \
  __builtin_shufflevector(*(const lm_half_F64 *)(low), *(const lm_half_F64 *)(high), 0, 1, 2, 3)
#endif

#define LM_LOW_2(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define LM_HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LM_LOW_4(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define LM_HIGH_4(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)

/* Transpose the halves of r[0 ... 3] and of r[4 ... 7], each a square. */
static inline void lm_transpose_halves_F32(lm_row_F32 r[8]) {
  for (int i = 0; i < 8; i += 4) {
    lm_row_F32 a = LM_LOW_2(r[i], r[i + 1]), b = LM_HIGH_2(r[i], r[i + 1]);
    lm_row_F32 c = LM_LOW_2(r[i + 2], r[i + 3]), d = LM_HIGH_2(r[i + 2], r[i + 3]);
    r[i] = LM_LOW_4(a, c);
    r[i + 1] = LM_HIGH_4(a, c);
    r[i + 2] = LM_LOW_4(b, d);
    r[i + 3] = LM_HIGH_4(b, d);
  }
}

static inline void lm_transpose_halves_F64(lm_row_F64 r[4]) {
  for (int i = 0; i < 4; i += 2) {
    lm_row_F64 a = r[i], b = r[i + 1];
    r[i] = __builtin_shufflevector(a, b, 0, 4, 2, 6);
    r[i + 1] = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  }
}

/* Define the load of a square whose rows begin `step` numbers apart, transposed to r, and the transposed store of r. */
#define LM_TRANSPOSED(E, REAL, ROWS)                                                                    \
  static inline void lm_load_transposed_##E(const REAL *x, ptrdiff_t step, lm_row_##E r[ROWS]) {        \
    for (int i = 0; i < ROWS; i++) {                                                                    \
      const REAL *at = x + i % (ROWS / 2) * step + i / (ROWS / 2) * (ROWS / 2);                         \
      r[i] = LM_ROW_OF_##E(at, at + (ROWS / 2) * step);                                                 \
    }                                                                                                   \
    lm_transpose_halves_##E(r);                                                                         \
  }                                                                                                     \
  static inline void lm_store_transposed_##E(lm_row_##E r[ROWS], REAL *y, ptrdiff_t step) {             \
    lm_transpose_halves_##E(r);                                                                         \
    for (int i = 0; i < ROWS; i++) { /* both halves of a row at once: they share a line of the cache */ \
      const lm_half_##E *left = (const lm_half_##E *)&r[i % (ROWS / 2)] + i / (ROWS / 2);               \
      lm_half_##E *to = (lm_half_##E *)(y + i * step);                                                  \
      to[0] = left[0];                                                                                  \
      to[1] = left[ROWS];                                                                               \
    }                                                                                                   \
  }
LM_TRANSPOSED(F32, float, 8)
LM_TRANSPOSED(F64, double, 4)
