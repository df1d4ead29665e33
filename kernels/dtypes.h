/* Lists the element types. Half and bfloat16 are stored as uint16_t and computed in float. For C and CUDA. */
#pragma once

#include <assert.h>
#include <stdint.h>

/* X(id, name, C storage type, low, high, …): the type holds exactly the integers from low to high; arguments after X
 * are passed on. Ids are the names of safetensors. Two integer types promote to the first one here that holds both. An
 * integer type is a row here and two lines in each_integer.inc of the CPU's templates. */
#define LM_INTEGER_DTYPES(X, ...)                             \
  X(U8, "uint8", uint8_t, 0, UINT8_MAX, __VA_ARGS__)          \
  X(I8, "int8", int8_t, INT8_MIN, INT8_MAX, __VA_ARGS__)      \
  X(I16, "int16", int16_t, INT16_MIN, INT16_MAX, __VA_ARGS__) \
  X(U16, "uint16", uint16_t, 0, UINT16_MAX, __VA_ARGS__)      \
  X(I32, "int32", int32_t, INT32_MIN, INT32_MAX, __VA_ARGS__) \
  X(I64, "int64", int64_t, INT64_MIN, INT64_MAX, __VA_ARGS__)

#define LM_FLOAT_DTYPES(X, ...)                                 \
  X(F16, "float16", uint16_t, -(1 << 11), 1 << 11, __VA_ARGS__) \
  X(BF16, "bfloat16", uint16_t, -(1 << 8), 1 << 8, __VA_ARGS__) \
  X(F32, "float32", float, -(1 << 24), 1 << 24, __VA_ARGS__)    \
  X(F64, "float64", double, -(INT64_C(1) << 53), INT64_C(1) << 53, __VA_ARGS__)

#define LM_DTYPES(X, ...)                     \
  X(BOOL, "bool", uint8_t, 0, 1, __VA_ARGS__) \
  LM_INTEGER_DTYPES(X, __VA_ARGS__)           \
  LM_FLOAT_DTYPES(X, __VA_ARGS__)

typedef enum lm_dtype {
#define X(id, ...) LM_##id,
  LM_DTYPES(X)
#undef X
      LM_DTYPE_COUNT,
  LM_NO_DTYPE = -1,
} __attribute__((packed)) lm_dtype; /* one byte */
static_assert(sizeof(lm_dtype) == 1, "headers of tensors and plug-ins count on it");

/* Storage types: lm_elem_U8 and so on. */
#define X(id, name, type, ...) typedef type lm_elem_##id;
LM_DTYPES(X)
#undef X
