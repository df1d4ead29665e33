/* Defines a register of float32 at this level. GCC keeps wider vectors in memory. */
#pragma once

#include <string.h>

#include "backend/cpu/isa/elem.h"

#if defined(__AVX512F__)
enum { LM_PACK = 16 };
#elif defined(__AVX2__)
enum { LM_PACK = 8 };
#else
enum { LM_PACK = 4 };
#endif
typedef float lm_float_pack __attribute__((vector_size(LM_PACK * sizeof(float))));

typedef float lm_float_8 __attribute__((vector_size(32), unused));
typedef float lm_float_4 __attribute__((vector_size(16)));

LM_INLINE lm_float_pack lm_pack_load(const float *from) {
  lm_float_pack p;
  memcpy(&p, from, sizeof p);
  return p;
}

LM_INLINE void lm_pack_store(float *to, lm_float_pack p) { memcpy(to, &p, sizeof p); }

/* A matrix that multiplies one row of x is read from memory once, and the product waits for that. Rows of fewer bytes
 * than lm_short_run are best read one after the other as one run, with prefetches lm_run_ahead bytes ahead; longer
 * ones, several at a time. */
enum { lm_short_run = 3072, lm_run_ahead = 1024, lm_cache_line = 64 };

/* Returns the sum of the lanes: halves are added, and then the sum's halves, in registers. */
LM_INLINE float lm_pack_sum(lm_float_pack p) {
#if defined(__AVX512F__)
  lm_float_8 half = __builtin_shufflevector(p, p, 0, 1, 2, 3, 4, 5, 6, 7);
  half += __builtin_shufflevector(p, p, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX2__)
  lm_float_8 half = p;
#endif
#if defined(__AVX2__)
  lm_float_4 sum = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
  lm_float_4 sum = p;
#endif
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1);
  return sum[0] + sum[1];
}
