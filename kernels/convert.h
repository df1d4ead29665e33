/* Elements of every dtype as numbers of a compute type and back, without branches, so that loops vectorize:
 * LM_GET_F16(stored) and so on give a float, a double or an integer, LM_PUT_F16(number) the stored form.
 * Numbers outside an integer's range wrap or, from floats, give what the machine gives. */
#ifndef LM_KERNELS_CONVERT_H
#define LM_KERNELS_CONVERT_H

#include "dtypes.h"
#include "half_float.h"

#define X(id, name, type, ...)                         \
  static inline type LM_GET_##id(type v) { return v; } \
  static inline type LM_PUT_##id(int64_t v) { return (type)v; }
LM_INTEGER_DTYPES(X)
#undef X

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

#endif
