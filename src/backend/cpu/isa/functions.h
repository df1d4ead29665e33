/* The functions in capitals that formulas call (point_scalars.h), of the type that LM_E names: F32, F64 or I64. */
#ifndef LM_CPU_ISA_FUNCTIONS_H
#define LM_CPU_ISA_FUNCTIONS_H

#include "scalar_functions_cpu.h"

#include "backend/cpu/isa/elem.h"

#define K(c) ((LM_ACC)(c))
#define EXP LM_FN(LM_EXP)
#define EXPM1 LM_FN(LM_EXPM1)
#define LOG LM_FN(LM_LOG)
#define LOG1P LM_FN(LM_LOG1P)
#define SQRT LM_FN(LM_SQRT)
#define SIN LM_FN(LM_SIN)
#define COS LM_FN(LM_COS)
#define TANH LM_FN(LM_TANH)
#define ERF LM_FN(LM_ERF)
#define POW LM_FN(LM_POW)
#define ABS LM_FN(LM_ABS)
#define FLOOR LM_FN(LM_FLOOR)
#define CEIL LM_FN(LM_CEIL)
#define ROUND LM_FN(LM_ROUND)
#define TRUNC LM_FN(LM_TRUNC)
#define FLOOR_DIVIDE LM_FN(LM_FLOOR_DIVIDE)
#define TRUNC_DIVIDE LM_FN(LM_TRUNC_DIVIDE)
#define REMAINDER LM_FN(LM_REMAINDER)
#define EXP2 LM_FN(LM_EXP2)
#define LOG2 LM_FN(LM_LOG2)
#define LOG10 LM_FN(LM_LOG10)
#define TAN LM_FN(LM_TAN)
#define ASIN LM_FN(LM_ASIN)
#define ACOS LM_FN(LM_ACOS)
#define ATAN LM_FN(LM_ATAN)
#define ASINH LM_FN(LM_ASINH)
#define ACOSH LM_FN(LM_ACOSH)
#define ATANH LM_FN(LM_ATANH)
#define ERFC LM_FN(LM_ERFC)
#define ATAN2 LM_FN(LM_ATAN2)
#define HYPOT LM_FN(LM_HYPOT)
#define COPYSIGN LM_FN(LM_COPYSIGN)
#define FMOD LM_FN(LM_FMOD)
#define GCD LM_FN(LM_GCD)
#define LGAMMA LM_FN(LM_LGAMMA)
#define DIGAMMA LM_FN(LM_DIGAMMA)
#define POLYGAMMA LM_FN(LM_POLYGAMMA)
#define ISNAN LM_NAN

#define LM_EXP_F32 lm_expf
#define LM_EXPM1_F32 expm1f
#define LM_LOG_F32 logf
#define LM_LOG1P_F32 log1pf
#define LM_SQRT_F32 sqrtf
#define LM_SIN_F32 sinf
#define LM_COS_F32 cosf
#define LM_TANH_F32 tanhf
#define LM_ERF_F32 erff
#define LM_POW_F32 powf
#define LM_ABS_F32 fabsf
#define LM_FLOOR_F32 floorf
#define LM_CEIL_F32 ceilf
#define LM_ROUND_F32 rintf
#define LM_TRUNC_F32 truncf
#define LM_FLOOR_DIVIDE_F32 lm_floor_dividef
#define LM_TRUNC_DIVIDE_F32(a, b) truncf((a) / (b))
#define LM_REMAINDER_F32 lm_remainderf
#define LM_EXP2_F32 exp2f
#define LM_LOG2_F32 log2f
#define LM_LOG10_F32 log10f
#define LM_TAN_F32 tanf
#define LM_ASIN_F32 asinf
#define LM_ACOS_F32 acosf
#define LM_ATAN_F32 atanf
#define LM_ASINH_F32 asinhf
#define LM_ACOSH_F32 acoshf
#define LM_ATANH_F32 atanhf
#define LM_ERFC_F32 erfcf
#define LM_ATAN2_F32 atan2f
#define LM_HYPOT_F32 hypotf
#define LM_COPYSIGN_F32 copysignf
#define LM_FMOD_F32 lm_fmodf
#define LM_LGAMMA_F32(x) ((float)lm_lgamma(x))
#define LM_DIGAMMA_F32(x) ((float)lm_digamma(x))
#define LM_POLYGAMMA_F32(x, n) ((float)lm_polygamma(x, n))

#define LM_EXP_F64 exp
#define LM_EXPM1_F64 expm1
#define LM_LOG_F64 log
#define LM_LOG1P_F64 log1p
#define LM_SQRT_F64 sqrt
#define LM_SIN_F64 sin
#define LM_COS_F64 cos
#define LM_TANH_F64 tanh
#define LM_ERF_F64 erf
#define LM_POW_F64 pow
#define LM_ABS_F64 fabs
#define LM_FLOOR_F64 floor
#define LM_CEIL_F64 ceil
#define LM_ROUND_F64 rint
#define LM_TRUNC_F64 trunc
#define LM_FLOOR_DIVIDE_F64 lm_floor_divide
#define LM_TRUNC_DIVIDE_F64(a, b) trunc((a) / (b))
#define LM_REMAINDER_F64 lm_remainder
#define LM_EXP2_F64 exp2
#define LM_LOG2_F64 log2
#define LM_LOG10_F64 log10
#define LM_TAN_F64 tan
#define LM_ASIN_F64 asin
#define LM_ACOS_F64 acos
#define LM_ATAN_F64 atan
#define LM_ASINH_F64 asinh
#define LM_ACOSH_F64 acosh
#define LM_ATANH_F64 atanh
#define LM_ERFC_F64 erfc
#define LM_ATAN2_F64 atan2
#define LM_HYPOT_F64 hypot
#define LM_COPYSIGN_F64 copysign
#define LM_FMOD_F64 fmod
#define LM_LGAMMA_F64 lm_lgamma
#define LM_DIGAMMA_F64 lm_digamma
#define LM_POLYGAMMA_F64 lm_polygamma

#define LM_POW_I64 lm_pow_i64
#define LM_ABS_I64(v) ((v) < 0 ? -(v) : (v))
#define LM_FLOOR_I64(v) (v)
#define LM_CEIL_I64(v) (v)
#define LM_ROUND_I64(v) (v)
#define LM_TRUNC_I64(v) (v)
#define LM_FLOOR_DIVIDE_I64 lm_floor_divide_i64
#define LM_TRUNC_DIVIDE_I64 lm_trunc_divide_i64
#define LM_REMAINDER_I64 lm_remainder_i64
#define LM_FMOD_I64 lm_fmod_i64
#define LM_COPYSIGN_I64(v, sign) ((sign) < 0 ? -LM_ABS_I64(v) : LM_ABS_I64(v))
#define LM_GCD_I64 lm_gcd_i64

#endif
