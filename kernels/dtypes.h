/* Element types, each once. Half and bfloat16 are stored as uint16_t and computed in float. For C and CUDA. */
#ifndef LM_KERNELS_DTYPES_H
#define LM_KERNELS_DTYPES_H

#include <stdint.h>

/* id, name, C storage type, bytes; in the order of promotion within a category */
#define LM_DTYPES(X)               \
  X(BOOL, "bool", uint8_t, 1)      \
  X(U8, "uint8", uint8_t, 1)       \
  X(I32, "int32", int32_t, 4)      \
  X(I64, "int64", int64_t, 8)      \
  X(F16, "float16", uint16_t, 2)   \
  X(BF16, "bfloat16", uint16_t, 2) \
  X(F32, "float32", float, 4)      \
  X(F64, "float64", double, 8)

typedef enum lm_dtype {
#define X(id, name, type, bytes) LM_##id,
  LM_DTYPES(X)
#undef X
      LM_DTYPE_COUNT,
  LM_NO_DTYPE = -1,
} lm_dtype;

#endif
