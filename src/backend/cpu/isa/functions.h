/* Defines the functions in capitals that formulas call (pointwise_scalars.h), for the type that LM_E names: F32, F64 or
 * I64. With LM_NARROW, those of int (I32) serve every narrower integer type. */
#pragma once

#include "scalar_functions_cpu.h"

#include "backend/cpu/isa/elem.h"

#ifdef LM_NARROW
#define LM_OF(name) name##_I32
#else
#define LM_OF(name) LM_FN(name)
#endif

#define K(c) ((LM_ACC)(c))
#define EXP LM_OF(LM_EXP)
#define EXPM1 LM_OF(LM_EXPM1)
#define LOG LM_OF(LM_LOG)
#define LOG1P LM_OF(LM_LOG1P)
#define SQRT LM_OF(LM_SQRT)
#define SIN LM_OF(LM_SIN)
#define COS LM_OF(LM_COS)
#define TANH LM_OF(LM_TANH)
#define ERF LM_OF(LM_ERF)
#define POW LM_OF(LM_POW)
#define ABS LM_OF(LM_ABS)
#define FLOOR LM_OF(LM_FLOOR)
#define CEIL LM_OF(LM_CEIL)
#define ROUND LM_OF(LM_ROUND)
#define TRUNC LM_OF(LM_TRUNC)
#define FLOOR_DIVIDE LM_OF(LM_FLOOR_DIVIDE)
#define TRUNC_DIVIDE LM_OF(LM_TRUNC_DIVIDE)
#define REMAINDER LM_OF(LM_REMAINDER)
#define EXP2 LM_OF(LM_EXP2)
#define LOG2 LM_OF(LM_LOG2)
#define LOG10 LM_OF(LM_LOG10)
#define TAN LM_OF(LM_TAN)
#define ASIN LM_OF(LM_ASIN)
#define ACOS LM_OF(LM_ACOS)
#define ATAN LM_OF(LM_ATAN)
#define ASINH LM_OF(LM_ASINH)
#define ACOSH LM_OF(LM_ACOSH)
#define ATANH LM_OF(LM_ATANH)
#define ERFC LM_OF(LM_ERFC)
#define ERFINV LM_OF(LM_ERFINV)
#define ATAN2 LM_OF(LM_ATAN2)
#define HYPOT LM_OF(LM_HYPOT)
#define COPYSIGN LM_OF(LM_COPYSIGN)
#define FMOD LM_OF(LM_FMOD)
#define GCD LM_OF(LM_GCD)
#define SHIFT_LEFT LM_OF(LM_SHIFT_LEFT)
#define SHIFT_RIGHT LM_OF(LM_SHIFT_RIGHT)
#define LGAMMA LM_OF(LM_LGAMMA)
#define DIGAMMA LM_OF(LM_DIGAMMA)
#define POLYGAMMA LM_OF(LM_POLYGAMMA)
#define IGAMMA LM_OF(LM_IGAMMA)
#define IGAMMAC LM_OF(LM_IGAMMAC)
#define GAMMA_SLOPE LM_OF(LM_GAMMA_SLOPE)
#define ISNAN LM_NAN

#define LM_EXP_F32 lm_expf
#define LM_EXPM1_F32 expm1f
#define LM_LOG_F32 logf
#define LM_LOG1P_F32 log1pf
#define LM_SQRT_F32 sqrtf
#define LM_SIN_F32 sinf
#define LM_COS_F32 cosf
#define LM_TANH_F32 tanhf
#define LM_ERF_F32 lm_erff
#define LM_POW_F32 lm_powf
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
#define LM_ATAN_F32 lm_atanf
#define LM_ASINH_F32 asinhf
#define LM_ACOSH_F32 acoshf
#define LM_ATANH_F32 atanhf
#define LM_ERFC_F32 erfcf
#define LM_ERFINV_F32 lm_inverse_erff
#define LM_ATAN2_F32 atan2f
#define LM_HYPOT_F32 hypotf
#define LM_COPYSIGN_F32 copysignf
#define LM_FMOD_F32 fmodf
#define LM_LGAMMA_F32(x) ((float)lm_lgamma(x))
#define LM_DIGAMMA_F32(x) ((float)lm_digamma(x))
#define LM_POLYGAMMA_F32(x, n) ((float)lm_polygamma(x, n))
#define LM_IGAMMA_F32(a, x) ((float)lm_igamma(a, x))
#define LM_IGAMMAC_F32(a, x) ((float)lm_igammac(a, x))
#define LM_GAMMA_SLOPE_F32(a, y) ((float)lm_gamma_slope(a, y))

#define LM_EXP_F64 exp
#define LM_EXPM1_F64 expm1
#define LM_LOG_F64 log
#define LM_LOG1P_F64 log1p
#define LM_SQRT_F64 sqrt
#define LM_SIN_F64 sin
#define LM_COS_F64 cos
#define LM_TANH_F64 tanh
#define LM_ERF_F64 erf
#define LM_POW_F64 lm_pow
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
#define LM_ERFINV_F64 lm_inverse_erf
#define LM_ATAN2_F64 atan2
#define LM_HYPOT_F64 hypot
#define LM_COPYSIGN_F64 copysign
#define LM_FMOD_F64 fmod
#define LM_LGAMMA_F64 lm_lgamma
#define LM_DIGAMMA_F64 lm_digamma
#define LM_POLYGAMMA_F64 lm_polygamma
#define LM_IGAMMA_F64 lm_igamma
#define LM_IGAMMAC_F64 lm_igammac
#define LM_GAMMA_SLOPE_F64 lm_gamma_slope

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
#define LM_SHIFT_LEFT_I64(v, by) ((by) < 0 || (by) > 63 ? 0 : (v) << ((by)&63))
#define LM_SHIFT_RIGHT_I64(v, by) ((v) >> ((by) < 0 || (by) > 63 ? 63 : (by)))

#define LM_ABS_I32(v) ((v) < 0 ? -(v) : (v))
#define LM_FLOOR_I32(v) (v)
#define LM_CEIL_I32(v) (v)
#define LM_ROUND_I32(v) (v)
#define LM_TRUNC_I32(v) (v)
#define LM_FLOOR_DIVIDE_I32 lm_floor_divide_i32
#define LM_TRUNC_DIVIDE_I32 lm_trunc_divide_i32
#define LM_REMAINDER_I32 lm_remainder_i32
#define LM_FMOD_I32 lm_fmod_i32
#define LM_SHIFT_LEFT_I32(v, by) ((by) < 0 || (by) > 31 ? 0 : (v) << ((by)&31))
#define LM_SHIFT_RIGHT_I32(v, by) ((v) >> ((by) < 0 || (by) > 31 ? 31 : (by)))
