/* Defines element types for loops. A template (templates/, .inc) is included once for each type, with LM_E set to the
 * type's id. The names here are then for that type: LM_ELEM is the type in memory, LM_ACC the one of the arithmetic,
 * LM_LOAD and LM_STORE convert between them, and LM_FN(name) is the name of a function of the template. */
#pragma once

#include <math.h>

#include "backend/cpu/isa.h"
#include "base/large_array.h"
#include "convert.h"
#include "integers.h"
#include "tensor/dtype.h"

typedef bool lm_acc_BOOL;
#define X(id, name, type, low, high, ...) \
  typedef type lm_acc_##id;               \
  enum { LM_LOWEST_##id = low };          \
  enum { LM_HIGHEST_##id = high };        \
  enum { LM_IS_WHOLE_##id = 1 };
LM_INTEGER_DTYPES(X)
#undef X
enum { LM_IS_WHOLE_BOOL, LM_IS_WHOLE_F16 = 0, LM_IS_WHOLE_BF16 = 0, LM_IS_WHOLE_F32 = 0, LM_IS_WHOLE_F64 = 0 };
typedef float lm_acc_F16, lm_acc_BF16, lm_acc_F32;
typedef double lm_acc_F64;

#define LM_FN(name) LM_ISA_JOIN(name, LM_E)
#define LM_ELEM LM_FN(lm_elem)
#define LM_ACC LM_FN(lm_acc)
#define LM_LOAD(v) ((LM_ACC)LM_FN(LM_GET)(v))
#define LM_STORE(v) ((LM_ELEM)LM_FN(LM_PUT)(v))

/* Numbers that are below and above all others, and a test for NaN. */
#define LM_LOWEST ((LM_ACC)LM_FN(LM_LOWEST))
#define LM_LOWEST_F16 (-INFINITY)
#define LM_LOWEST_BF16 (-INFINITY)
#define LM_LOWEST_F32 (-INFINITY)
#define LM_LOWEST_F64 (-INFINITY)
#define LM_HIGHEST ((LM_ACC)LM_FN(LM_HIGHEST))
#define LM_HIGHEST_BF16 INFINITY
#define LM_HIGHEST_F32 INFINITY
#define LM_HIGHEST_F64 INFINITY
#define LM_NAN(v) ((v) != (v)) /* integers are never NaN, which the compiler knows */

/* Define tables of a loop for each floating dtype, and for each integer one. */
#define LM_DTYPE_AT(dtype) [dtype] =
#define LM_DTYPE_ROW(id, name, type, low, high, loop) LM_DTYPE_AT(LM_##id) loop##_##id,
#define LM_FLOATS(loop) LM_FLOAT_DTYPES(LM_DTYPE_ROW, loop)
#define LM_INTEGERS(loop) LM_INTEGER_DTYPES(LM_DTYPE_ROW, loop)

#define LM_INLINE static inline __attribute__((always_inline, unused))

/* Precede a loop whose iterations touch nothing that another one writes; and one of a few constant iterations, whose
 * arrays then stay in registers. */
#ifdef __clang__
#define LM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define LM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LM_INDEPENDENT _Pragma("GCC ivdep")
#define LM_UNROLL _Pragma("GCC unroll 32")
#endif

/* Precedes a loop whose iterations the compiler may run as vectors. */
#define LM_SIMD _Pragma("omp simd")

/* Rounds a product before it is added to anything; else it would be fused with the sum in some loops only. */
#define LM_ROUNDED(product) __asm__("" : "+m"(product))

/* Joins lanes 0 to length - 1 with those `length` after them. Lanes stay in registers only with a constant length. */
#define LM_HALVE(lane, length, JOIN) \
  for (int k_ = 0; k_ < (length); k_++) (lane)[k_] = JOIN((lane)[k_ + (length)], (lane)[k_])
#define LM_ADDED(a, b) ((a) + (b))

/* Sets the last n % length lanes to `value`, an expression of index i_, of as many last elements of n, and the other
 * lanes to `start`. If n is at least `length`, loops have that length and read earlier elements too. */
#define LM_LAST_LANES(lane, length, n, start, value)                          \
  do {                                                                        \
    const int64_t n_ = (n), left_ = n_ % (length), from_ = n_ - (length);     \
    if (from_ >= 0) {                                                         \
      for (int k_ = 0; k_ < (length); k_++) {                                 \
        const int64_t i_ = from_ + k_;                                        \
        const __typeof__(+(lane)[0]) v_ = (value);                            \
        (lane)[k_] = k_ >= (length)-left_ ? v_ : (start);                     \
      }                                                                       \
    } else {                                                                  \
      for (int k_ = 0; k_ < (length); k_++) (lane)[k_] = (start);             \
      for (int64_t i_ = 0; i_ < n_; i_++) (lane)[(length)-n_ + i_] = (value); \
    }                                                                         \
  } while (0)
