/* Stored elements in kernels: every dtype has a type of its own, so that templates tell bool from uint8 and half from
 * bfloat16, and arithmetic is written for float, double and int64 alone. */
#ifndef LM_KERNELS_TYPES_CUH
#define LM_KERNELS_TYPES_CUH

#include "dtypes.h"
#include "launch.cuh"

#if defined(LM_HOST_KERNELS)
#include "convert.h"
#else
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

/* What arithmetic on elements of T is done in, and summed in. */
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

/* lm_get<C>(stored) is its value in the compute type C; lm_put<T>(value) the stored form, rounded to nearest even. */
template <class C, class T>
LM_DEVICE C lm_get(T v) {
  return (C)v;
}
template <class C>
LM_DEVICE C lm_get(lm_bool v) {
  return (C)(v.bits != 0);
}
template <class C>
LM_DEVICE C lm_get(lm_f16 v) {
#if defined(LM_HOST_KERNELS)
  return (C)lm_from_half(v.bits);
#else
  return (C)__half2float(__ushort_as_half(v.bits));
#endif
}
template <class C>
LM_DEVICE C lm_get(lm_bf16 v) {
  return (C)__uint_as_float((uint32_t)v.bits << 16);
}

template <class T>
struct lm_putter {
  template <class C>
  static LM_DEVICE T put(C v) {
    return (T)v;
  }
};
/* As on the CPU: through int64, so that numbers out of range wrap. */
template <>
struct lm_putter<uint8_t> {
  template <class C>
  static LM_DEVICE uint8_t put(C v) {
    return (uint8_t)(int64_t)v;
  }
};
template <>
struct lm_putter<int32_t> {
  template <class C>
  static LM_DEVICE int32_t put(C v) {
    return (int32_t)(int64_t)v;
  }
};
template <>
struct lm_putter<lm_bool> {
  template <class C>
  static LM_DEVICE lm_bool put(C v) {
    return lm_bool{(uint8_t)(v != 0)};
  }
};
template <>
struct lm_putter<lm_f16> {
  template <class C>
  static LM_DEVICE lm_f16 put(C v) {
#if defined(LM_HOST_KERNELS)
    return lm_f16{lm_to_half((float)v)};
#else
    return lm_f16{__half_as_ushort(__float2half_rn((float)v))};
#endif
  }
};
template <>
struct lm_putter<lm_bf16> {
  template <class C>
  static LM_DEVICE lm_bf16 put(C v) {
#if defined(LM_HOST_KERNELS)
    return lm_bf16{lm_to_bf16((float)v)};
#else
    return lm_bf16{__bfloat16_as_ushort(__float2bfloat16_rn((float)v))};
#endif
  }
};
template <class T, class C>
LM_DEVICE T lm_put(C v) {
  return lm_putter<T>::put(v);
}

/* Call f with an element of the dtype's type, and give what it returns; cudaErrorInvalidValue for other dtypes. */
template <class F>
int lm_for_float(int dtype, F f) {
  switch (dtype) {
    case LM_F16: return f(lm_f16{});
    case LM_BF16: return f(lm_bf16{});
    case LM_F32: return f(float{});
    case LM_F64: return f(double{});
    default: return 1;
  }
}
template <class F>
int lm_for_dtype(int dtype, F f) {
  switch (dtype) {
    case LM_BOOL: return f(lm_bool{});
    case LM_U8: return f(uint8_t{});
    case LM_I32: return f(int32_t{});
    case LM_I64: return f(int64_t{});
    default: return lm_for_float(dtype, f);
  }
}
/* By size alone, for kernels that only move elements. */
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

#endif
