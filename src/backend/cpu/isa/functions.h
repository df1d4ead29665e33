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

#define LM_POW_I64 lm_pow_i64
#define LM_ABS_I64(v) ((v) < 0 ? -(v) : (v))
#define LM_FLOOR_I64(v) (v)
#define LM_CEIL_I64(v) (v)
#define LM_ROUND_I64(v) (v)
#define LM_TRUNC_I64(v) (v)
#define LM_FLOOR_DIVIDE_I64 lm_floor_divide_i64
#define LM_TRUNC_DIVIDE_I64 lm_trunc_divide_i64
#define LM_REMAINDER_I64 lm_remainder_i64

#endif
