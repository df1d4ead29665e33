/* Elementwise loops in int64, for every integer dtype and bool. */
#include "scalar.h"

typedef int64_t num;
#define LM_POINT_TABLE lm_point_i64
#define LM_WHOLE

#define POW lm_pow_i64
#define ABS(v) ((v) < 0 ? -(v) : (v))
#define FLOOR(v) (v)
#define CEIL(v) (v)
#define ROUND(v) (v)
#define TRUNC(v) (v)
#define FLOOR_DIVIDE lm_floor_divide_i64
#define TRUNC_DIVIDE lm_trunc_divide_i64
#define REMAINDER lm_remainder_i64
#define ISNAN(v) ((void)(v), 0)

#include "backend/cpu/isa/point_loops.inc"
