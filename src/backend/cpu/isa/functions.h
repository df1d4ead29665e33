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
#define EXPM1 LM_OF(LM_MATH)(expm1)
#define LOG LM_OF(LM_MATH)(log)
#define LOG1P LM_OF(LM_MATH)(log1p)
#define SQRT LM_OF(LM_MATH)(sqrt)
#define SIN LM_OF(LM_MATH)(sin)
#define COS LM_OF(LM_MATH)(cos)
#define TANH LM_OF(LM_MATH)(tanh)
#define ERF LM_OF(LM_ERF)
#define POW LM_OF(LM_MATH)(lm_pow)
#define ABS LM_OF(LM_ABS)
#define FLOOR LM_OF(LM_FLOOR)
#define CEIL LM_OF(LM_CEIL)
#define ROUND LM_OF(LM_ROUND)
#define TRUNC LM_OF(LM_TRUNC)
#define FLOOR_DIVIDE LM_OF(LM_MATH)(lm_floor_divide)
#define TRUNC_DIVIDE LM_OF(LM_TRUNC_DIVIDE)
#define REMAINDER LM_OF(LM_MATH)(lm_remainder)
#define EXP2 LM_OF(LM_MATH)(exp2)
#define LOG2 LM_OF(LM_MATH)(log2)
#define LOG10 LM_OF(LM_MATH)(log10)
#define TAN LM_OF(LM_MATH)(tan)
#define ASIN LM_OF(LM_MATH)(asin)
#define ACOS LM_OF(LM_MATH)(acos)
#define ATAN LM_OF(LM_ATAN)
#define ASINH LM_OF(LM_MATH)(asinh)
#define ACOSH LM_OF(LM_MATH)(acosh)
#define ATANH LM_OF(LM_MATH)(atanh)
#define ERFC LM_OF(LM_MATH)(erfc)
#define ERFINV LM_OF(LM_MATH)(lm_inverse_erf)
#define ATAN2 LM_OF(LM_MATH)(atan2)
#define HYPOT LM_OF(LM_MATH)(hypot)
#define COPYSIGN LM_OF(LM_COPYSIGN)
#define FMOD LM_OF(LM_FMOD)
#define GCD LM_OF(LM_MATH)(lm_gcd)
#define SHIFT_LEFT LM_OF(LM_SHIFT_LEFT)
#define SHIFT_RIGHT LM_OF(LM_SHIFT_RIGHT)
#define LGAMMA(...) ((LM_ACC)lm_lgamma(__VA_ARGS__))
#define DIGAMMA(...) ((LM_ACC)lm_digamma(__VA_ARGS__))
#define POLYGAMMA(...) ((LM_ACC)lm_polygamma(__VA_ARGS__))
#define IGAMMA(...) ((LM_ACC)lm_igamma(__VA_ARGS__))
#define IGAMMAC(...) ((LM_ACC)lm_igammac(__VA_ARGS__))
#define GAMMA_SLOPE(...) ((LM_ACC)lm_gamma_slope(__VA_ARGS__))
#define ISNAN LM_NAN

/* Functions that are called as those of double, but with an ending for the type. */
#define LM_MATH_F32(name) name##f
#define LM_MATH_F64(name) name
#define LM_MATH_I64(name) name##_i64
#define LM_MATH_I32(name) name##_i32

#define LM_EXP_F32 lm_expf
#define LM_ERF_F32 lm_erff
#define LM_ABS_F32 fabsf
#define LM_FLOOR_F32 floorf
#define LM_CEIL_F32 ceilf
#define LM_ROUND_F32 rintf
#define LM_TRUNC_F32 truncf
#define LM_TRUNC_DIVIDE_F32(a, b) truncf((a) / (b))
#define LM_ATAN_F32 lm_atanf
#define LM_COPYSIGN_F32 copysignf
#define LM_FMOD_F32 fmodf

#define LM_EXP_F64 exp
#define LM_ERF_F64 erf
#define LM_ABS_F64 fabs
#define LM_FLOOR_F64 floor
#define LM_CEIL_F64 ceil
#define LM_ROUND_F64 rint
#define LM_TRUNC_F64 trunc
#define LM_TRUNC_DIVIDE_F64(a, b) trunc((a) / (b))
#define LM_ATAN_F64 atan
#define LM_COPYSIGN_F64 copysign
#define LM_FMOD_F64 fmod

#define LM_ABS_I64(v) ((v) < 0 ? -(v) : (v))
#define LM_FLOOR_I64(v) (v)
#define LM_CEIL_I64(v) (v)
#define LM_ROUND_I64(v) (v)
#define LM_TRUNC_I64(v) (v)
#define LM_TRUNC_DIVIDE_I64 lm_trunc_divide_i64
#define LM_FMOD_I64 lm_fmod_i64
#define LM_COPYSIGN_I64(v, sign) ((sign) < 0 ? -LM_ABS_I64(v) : LM_ABS_I64(v))
#define LM_SHIFT_LEFT_I64(v, by) ((by) < 0 || (by) > 63 ? 0 : (v) << ((by)&63))
#define LM_SHIFT_RIGHT_I64(v, by) ((v) >> ((by) < 0 || (by) > 63 ? 63 : (by)))

#define LM_ABS_I32(v) ((v) < 0 ? -(v) : (v))
#define LM_FLOOR_I32(v) (v)
#define LM_CEIL_I32(v) (v)
#define LM_ROUND_I32(v) (v)
#define LM_TRUNC_I32(v) (v)
#define LM_TRUNC_DIVIDE_I32 lm_trunc_divide_i32
#define LM_FMOD_I32 lm_fmod_i32
#define LM_SHIFT_LEFT_I32(v, by) ((by) < 0 || (by) > 31 ? 0 : (v) << ((by)&31))
#define LM_SHIFT_RIGHT_I32(v, by) ((v) >> ((by) < 0 || (by) > 31 ? 31 : (by)))
