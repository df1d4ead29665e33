/* A register of float32 at this level. GCC keeps wider vectors in memory. */
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

/* What one row of x is multiplied by comes from memory once, and the product waits for it. Rows of fewer bytes than
 * lm_short_run are best read one after the other, as one run, of which what lies lm_run_ahead bytes on is asked for;
 * of longer ones several at a time. */
enum { lm_short_run = 3072, lm_run_ahead = 1024, lm_cache_line = 64 };

LM_INLINE float lm_pack_sum(lm_float_pack p) {
  float lane[LM_PACK];
  memcpy(lane, &p, sizeof lane);
  for (int half = LM_PACK / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; l++) lane[l] += lane[l + half];
  }
  return lane[0];
}
