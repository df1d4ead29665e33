/* Supplies what the kernels' headers use of standard headers, for NVRTC, which has none. */
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long uintptr_t;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define INT64_C(n) n##LL
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define static_assert(...) static_assert(true, "") /* NVRTC does not pack enums */

namespace std {
template <class A, class B>
constexpr bool is_same_v = false;
template <class A>
constexpr bool is_same_v<A, A> = true;
template <class T>
constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
constexpr bool is_integral_v = is_same_v<T, int8_t> || is_same_v<T, uint8_t> || is_same_v<T, int16_t> ||
                               is_same_v<T, uint16_t> || is_same_v<T, int32_t> || is_same_v<T, int64_t>;
template <bool C, class A, class B>
struct conditional {
  typedef A type;
};
template <class A, class B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool C, class A, class B>
using conditional_t = typename conditional<C, A, B>::type;
template <class T>
struct numeric_limits { /* for integers alone */
  static constexpr bool is_signed = (T)-1 < (T)0;
  static constexpr T max() { return (T)(is_signed ? ((1ull << (8 * sizeof(T) - 1)) - 1) : ~0ull); }
  static constexpr T min() { return is_signed ? (T)(-max() - 1) : (T)0; }
};
}  // namespace std
#endif
