#include "backend/cpu/isa/reduce.h"

#include "backend/cpu/isa/functions.h"

enum { SOME = 16, BLOCK = 4096, CHUNK = 64 };

#define IS_MAX(fold) ((fold) == LM_REDUCE_MAX || (fold) == LM_REDUCE_ABS_MAX)
#define IS_MIN(fold) ((fold) == LM_REDUCE_MIN || (fold) == LM_REDUCE_ABS_MIN)

/* The folds of each compute type, the type of its totals, and their member of lm_total. */
#define FOLDS_I64(X) X(SUM) X(PRODUCT) X(NONZERO) X(MAX) X(MIN)
#define FOLDS_U8(X) X(MAX) X(MIN)
#define FOLDS_I8(X) X(MAX) X(MIN)
#define FOLDS_I16(X) X(MAX) X(MIN)
#define FOLDS_I32(X) X(MAX) X(MIN)
#define FOLDS_F32(X) FOLDS_I64(X) X(NUMBERS) X(ABS) X(SQUARE) X(POWER) X(DEVIATION) X(EXP) X(ABS_MAX) X(ABS_MIN)
#define FOLDS_F64(X) FOLDS_F32(X)
#define FOLDS_BF16(X) FOLDS_I64(X) X(NUMBERS) X(ABS) X(SQUARE) X(DEVIATION)
#define TOTAL __typeof__(_Generic((LM_ACC)0, double : 0.0, float : 0.0, default : (int64_t)0))
#define MEMBER LM_FN(MEMBER)
#define MEMBER_BF16 f
#define MEMBER_I64 i
#define MEMBER_U8 i
#define MEMBER_I8 i
#define MEMBER_I16 i
#define MEMBER_I32 i
#define MEMBER_F32 f
#define MEMBER_F64 f
/* Tests if one of two floats is NaN: returns -1 or 0, as an integer as wide as these. */
#define LM_HAS_NAN __typeof__(_Generic((LM_ACC)0, double : (int64_t)0, default : (int32_t)0))
LM_INLINE int64_t unordered_f64(double a, double b) { return __builtin_isunordered(a, b) ? -1 : 0; }
LM_INLINE int32_t unordered_f32(float a, float b) { return __builtin_isunordered(a, b) ? -1 : 0; }
LM_INLINE int32_t unordered_integers(int64_t a, int64_t b) { return (void)a, (void)b, 0; }
#define LM_UNORDERED(a, b) \
  _Generic((LM_ACC)0, double : unordered_f64, float : unordered_f32, default : unordered_integers)(a, b)
#define LM_EXP_I64(v) (v) /* never used: integers have no such fold */

#define LM_TEMPLATE "backend/cpu/isa/templates/reduce.inc"
#include "backend/cpu/isa/templates/each_real.inc"
#define LM_E I64
#include LM_TEMPLATE
#undef LM_E

#undef LM_OF
#define LM_OF(name) name##_F32
#define LM_E BF16
#include LM_TEMPLATE
#undef LM_E

#undef LM_OF /* folds of narrower integers call no functions */
#define LM_OF(name) name##_I64
#pragma GCC diagnostic ignored "-Wtype-limits" /* ABS compares unsigned numbers with 0 */
#define LM_E U8
#include LM_TEMPLATE
#undef LM_E
#define LM_E I8
#include LM_TEMPLATE
#undef LM_E
#define LM_E I16
#include LM_TEMPLATE
#undef LM_E
#define LM_E I32
#include LM_TEMPLATE
