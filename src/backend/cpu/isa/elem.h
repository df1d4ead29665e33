/* Element types as the loops in isa/ see them: what memory holds, what the arithmetic is done in,
 * and the way from one to the other. A loop file's template (a .inc) is included once for each type
 * with LM_E set to its id: LM_ELEM, LM_ACC, LM_LOAD, LM_STORE and LM_FN then speak of that type. */
#ifndef LM_CPU_ISA_ELEM_H
#define LM_CPU_ISA_ELEM_H

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

typedef uint8_t lm_elem_U8, lm_acc_U8;
typedef int32_t lm_elem_I32, lm_acc_I32;
typedef int64_t lm_elem_I64, lm_acc_I64;
typedef uint16_t lm_elem_F16, lm_elem_BF16;
typedef float lm_acc_F16, lm_acc_BF16;
typedef float lm_elem_F32, lm_acc_F32;
typedef double lm_elem_F64, lm_acc_F64;

#define LM_ELEM_PLAIN(E)                                            \
  static inline lm_acc_##E lm_load_##E(lm_elem_##E v) { return v; } \
  static inline lm_elem_##E lm_store_##E(lm_acc_##E v) { return v; }
LM_ELEM_PLAIN(U8)
LM_ELEM_PLAIN(I32)
LM_ELEM_PLAIN(I64)
LM_ELEM_PLAIN(F32)
LM_ELEM_PLAIN(F64)
#undef LM_ELEM_PLAIN

static inline float lm_load_BF16(uint16_t v) { return lm_bf16_to_float(v); }
static inline uint16_t lm_store_BF16(float v) { return lm_float_to_bf16(v); }
#if defined(__F16C__)
static inline float lm_load_F16(uint16_t v) { return _cvtsh_ss(v); }
static inline uint16_t lm_store_F16(float v) { return _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
#else
static inline float lm_load_F16(uint16_t v) { return lm_half_to_float(v); }
static inline uint16_t lm_store_F16(float v) { return lm_float_to_half(v); }
#endif

#define LM_NAN_U8(v) 0
#define LM_NAN_I32(v) 0
#define LM_NAN_I64(v) 0
#define LM_NAN_F16(v) ((v) != (v))
#define LM_NAN_BF16(v) ((v) != (v))
#define LM_NAN_F32(v) ((v) != (v))
#define LM_NAN_F64(v) ((v) != (v))

#define LM_LOWEST_U8 0
#define LM_LOWEST_I32 INT32_MIN
#define LM_LOWEST_I64 INT64_MIN
#define LM_LOWEST_F16 (-INFINITY)
#define LM_LOWEST_BF16 (-INFINITY)
#define LM_LOWEST_F32 (-INFINITY)
#define LM_LOWEST_F64 (-INFINITY)

#define LM_ELEM LM_ISA_JOIN(lm_elem, LM_E)
#define LM_ACC LM_ISA_JOIN(lm_acc, LM_E)
#define LM_LOAD LM_ISA_JOIN(lm_load, LM_E)
#define LM_STORE LM_ISA_JOIN(lm_store, LM_E)
#define LM_LOWEST LM_ISA_JOIN(LM_LOWEST, LM_E)
#define LM_NAN LM_ISA_JOIN(LM_NAN, LM_E)
#define LM_FN(name) LM_ISA_JOIN(name, LM_E)

#endif
