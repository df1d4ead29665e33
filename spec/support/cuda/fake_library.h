/* Reads and writes elements of any floating dtype as doubles, for the fakes of cuBLASLt and cuDNN. */
#ifndef LM_FAKE_LIBRARY_H
#define LM_FAKE_LIBRARY_H

#include <string.h>

#include "fake.h"
#include "types.cuh"

static inline double lm_fake_read(int dtype, const void *p, int64_t i) {
  switch (dtype) {
    case LM_F16: return lm_get<double>(((const lm_f16 *)p)[i]);
    case LM_BF16: return lm_get<double>(((const lm_bf16 *)p)[i]);
    case LM_F32: return ((const float *)p)[i];
    case LM_I64: return (double)((const int64_t *)p)[i];
    default: return ((const double *)p)[i];
  }
}

static inline void lm_fake_write(int dtype, void *p, int64_t i, double v) {
  switch (dtype) {
    case LM_F16: ((lm_f16 *)p)[i] = lm_put<lm_f16>(v); break;
    case LM_BF16: ((lm_bf16 *)p)[i] = lm_put<lm_bf16>(v); break;
    case LM_F32: ((float *)p)[i] = (float)v; break;
    default: ((double *)p)[i] = v;
  }
}

/* Rounds as TF32's inputs are: to 10 bits of mantissa. */
static inline double lm_fake_tf32(double v) {
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint64_t lm_fake_bytes_of(int dtype) {
  return dtype == LM_F16 || dtype == LM_BF16 ? 2 : dtype == LM_F32 ? 4 : 8;
}

/* Returns lm_fake_counts's name of a product. */
static inline const char *lm_fake_product_of(int dtype, bool tf32) {
  return tf32               ? "product tf32"
         : dtype == LM_F16  ? "product float16"
         : dtype == LM_BF16 ? "product bfloat16"
         : dtype == LM_F32  ? "product float32"
                            : "product float64";
}

static inline bool lm_fake_aligned(const void *p, int64_t bytes) { return (uintptr_t)p % (uintptr_t)bytes == 0; }

#endif
