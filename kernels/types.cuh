/* Defines stored elements in kernels: every dtype has its own type, so that templates distinguish bool from uint8 and
 * half from bfloat16, and arithmetic is written for float, double and int64 alone. */
#pragma once

#include <math.h>
#include <limits>
#include <type_traits>

#include "dtypes.h"
#include "launch.cuh"

#if defined(LM_HOST_KERNELS)
#include "half_float.h"
#elif !defined(__CUDACC_RTC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

struct lm_f16 {
  uint16_t bits;
};
struct lm_bf16 {
  uint16_t bits;
};
struct lm_bool {
  uint8_t bits;
};

/* Stored types: lm_stored_U8 and so on. */
#define X(id, name, type, ...) typedef type lm_stored_##id;
LM_INTEGER_DTYPES(X)
#undef X
typedef lm_bool lm_stored_BOOL;
typedef lm_f16 lm_stored_F16;
typedef lm_bf16 lm_stored_BF16;
typedef float lm_stored_F32;
typedef double lm_stored_F64;

template <class T, class... Others>
constexpr bool lm_is_any = (std::is_same_v<T, Others> || ...);

/* Returns the bytes of an element. */
static inline int lm_dtype_width(int dtype) {
  static const uint8_t width[LM_DTYPE_COUNT] = {
#define X(id, name, type, ...) sizeof(type),
      LM_DTYPES(X)
#undef X
  };
  return width[dtype];
}

/* The compute type of T, for arithmetic and sums. A table of specializations, since compilers must agree on the names
 * of kernels whose parameters point to it. */
template <class T>
struct lm_compute_of {
  typedef int64_t type;
};
template <>
struct lm_compute_of<lm_f16> {
  typedef float type;
};
template <>
struct lm_compute_of<lm_bf16> {
  typedef float type;
};
template <>
struct lm_compute_of<float> {
  typedef float type;
};
template <>
struct lm_compute_of<double> {
  typedef double type;
};
template <class T>
using lm_compute = typename lm_compute_of<T>::type;

/* Converts a float to an integer, as on the CPU (convert.h): toward zero; what fits int64 but not T wraps; beyond int64
 * it is T's own limit, and NaN is 0. */
template <class T, class C>
LM_DEVICE T lm_whole(C v) {
  constexpr T low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  if (v >= (C)0x1p63) return high;
  if (v < (C)-0x1p63) return low;
  return v == v ? (T)(int64_t)v : (T)0;
}

/* lm_get<C>(stored) returns a value in the compute type C; lm_put<T>(value) rounds to the stored form, ties to even. */
template <class C, class T>
LM_DEVICE C lm_get(T v) {
  if constexpr (std::is_same_v<T, lm_bool>) {
    return (C)(v.bits != 0);
  } else if constexpr (std::is_same_v<T, lm_f16>) {
#if defined(LM_HOST_KERNELS)
    return (C)lm_from_half(v.bits);
#elif defined(__CUDACC_RTC__) /* which has no headers of CUDA */
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return (C)f;
#else
    return (C)__half2float(__ushort_as_half(v.bits));
#endif
  } else if constexpr (std::is_same_v<T, lm_bf16>) {
    return (C)__uint_as_float((uint32_t)v.bits << 16);
  } else {
    return (C)v;
  }
}

template <class T, class C>
LM_DEVICE T lm_put(C v) {
  if constexpr (std::is_same_v<T, lm_bool>) {
    return lm_bool{(uint8_t)(v != 0)};
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<C>) {
    return lm_whole<T>(v);
  } else if constexpr (std::is_same_v<T, lm_f16>) {
#if defined(LM_HOST_KERNELS)
    return lm_f16{lm_to_half((float)v)};
#elif defined(__CUDACC_RTC__)
    lm_f16 stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored.bits) : "f"((float)v));
    return stored;
#else
    return lm_f16{__half_as_ushort(__float2half_rn((float)v))};
#endif
  } else if constexpr (std::is_same_v<T, lm_bf16>) {
#if defined(LM_HOST_KERNELS)
    return lm_bf16{lm_to_bf16((float)v)};
#elif defined(__CUDACC_RTC__)
    lm_bf16 stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored.bits) : "f"((float)v));
    return stored;
#else
    return lm_bf16{__bfloat16_as_ushort(__float2bfloat16_rn((float)v))};
#endif
  } else {
    return (T)v;
  }
}

/* Returns -infinity or, for integers, the least number of type C. */
template <class C>
LM_DEVICE C lm_lowest() {
  if constexpr (std::is_floating_point_v<C>) {
    return -(C)INFINITY;
  } else {
    return sizeof(C) == 4 ? (C)INT32_MIN : (C)INT64_MIN;
  }
}

/* Returns element i of a floating dtype. */
LM_DEVICE double lm_number_at(const void *p, int dtype, int64_t i) {
  switch (dtype) {
    case LM_F16: return lm_get<double>(((const lm_f16 *)p)[i]);
    case LM_BF16: return lm_get<double>(((const lm_bf16 *)p)[i]);
    case LM_F32: return ((const float *)p)[i];
    default: return ((const double *)p)[i];
  }
}

/* Stores a number as an element of any dtype; called once for each result, not for each element. */
template <class C>
LM_DEVICE void lm_put_number(void *out, int dtype, int64_t at, C v) {
  switch (dtype) {
#define X(id, ...) \
  case LM_##id: ((lm_stored_##id *)out)[at] = lm_put<lm_stored_##id>(v); break;
    LM_DTYPES(X)
#undef X
  }
}

/* Call f with an element of the dtype's type and return its result; cudaErrorInvalidValue for other dtypes. */
template <class F>
int lm_for_float(int dtype, F f) {
  switch (dtype) {
#define LM_CALL_FOR(id, ...) \
  case LM_##id: return f(lm_stored_##id{});
    LM_FLOAT_DTYPES(LM_CALL_FOR)
    default: return 1;
  }
}
template <class F>
int lm_for_number(int dtype, F f) { /* all but bool */
  switch (dtype) {
    LM_INTEGER_DTYPES(LM_CALL_FOR)
    default: return lm_for_float(dtype, f);
  }
}
template <class F>
int lm_for_dtype(int dtype, F f) {
  switch (dtype) {
    LM_DTYPES(LM_CALL_FOR)
    default: return 1;
  }
}
/* Calls f with an unsigned value of `bytes` bytes, for kernels that only move elements; else returns 1. */
template <class F>
int lm_for_width(int bytes, F f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return 1;
  }
}
