/* A register of float32 at this level. GCC keeps wider vectors in memory. */
#ifndef LM_CPU_ISA_FLOAT_PACK_H
#define LM_CPU_ISA_FLOAT_PACK_H

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

LM_INLINE float lm_pack_sum(lm_float_pack p) {
  float lane[LM_PACK];
  memcpy(lane, &p, sizeof lane);
  for (int half = LM_PACK / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; l++) lane[l] += lane[l + half];
  }
  return lane[0];
}

#endif
