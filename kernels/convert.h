/* Converts elements of every dtype to a compute type and back, without branches, so that loops vectorize:
 * LM_GET_F16(stored) and so on return a float, a double or an integer, LM_PUT_F16(number) the stored form. Floats
 * become integers as by lm_put of types.cuh: toward zero; a number that fits int64 but not the type wraps, as in
 * PyTorch; beyond int64 it becomes the type's own limit, and NaN becomes 0. */
#pragma once

#include "dtypes.h"
#include "half_float.h"

/* Casts integers that int64 holds, and limits other numbers first, since casting them is undefined in C. */
#define LM_WHOLE_OF(id, type, low, high, real, largest)                              \
  static inline __attribute__((always_inline)) type lm_whole_##real##_##id(real v) { \
    real near = v < (real)largest ? v : (real)largest;                               \
    type whole = (type)(int64_t)(near > (real)-0x1p63 ? near : (real)-0x1p63);       \
    whole = v >= (real)0x1p63 ? (type)high : whole;                                  \
    whole = v < (real)-0x1p63 ? (type)low : whole;                                   \
    return v == v ? whole : (type)0;                                                 \
  }
#define X(id, name, type, low, high, ...)                               \
  static inline type LM_GET_##id(type v) { return v; }                  \
  static inline type lm_whole_int64_##id(int64_t v) { return (type)v; } \
  LM_WHOLE_OF(id, type, low, high, float, 0x1.fffffep62f)               \
  LM_WHOLE_OF(id, type, low, high, double, 0x1.fffffffffffffp62)
LM_INTEGER_DTYPES(X)
#undef X
#undef LM_WHOLE_OF
#define LM_PUT_WHOLE(id, v) \
  _Generic((v), float : lm_whole_float_##id, double : lm_whole_double_##id, default : lm_whole_int64_##id)(v)
#define LM_PUT_U8(v) LM_PUT_WHOLE(U8, v)
#define LM_PUT_I8(v) LM_PUT_WHOLE(I8, v)
#define LM_PUT_I16(v) LM_PUT_WHOLE(I16, v)
#define LM_PUT_U16(v) LM_PUT_WHOLE(U16, v)
#define LM_PUT_I32(v) LM_PUT_WHOLE(I32, v)
#define LM_PUT_I64(v) LM_PUT_WHOLE(I64, v)

#define LM_GET_BOOL(v) ((v) != 0)
#define LM_GET_F16(v) lm_from_half(v)
#define LM_GET_BF16(v) lm_from_bf16(v)
#define LM_GET_F32(v) (v)
#define LM_GET_F64(v) (v)

#define LM_PUT_BOOL(v) ((v) != 0)
#define LM_PUT_F16(v) lm_to_half((float)(v))
#define LM_PUT_BF16(v) lm_to_bf16((float)(v))
#define LM_PUT_F32(v) ((float)(v))
#define LM_PUT_F64(v) ((double)(v))
