/* Elementwise loops in float. */
#include "scalar.h"

typedef float num;
#define LM_POINT_TABLE lm_point_f32
#define LM_REAL

#define K(c) ((float)(c))
#define EXP lm_expf
#define EXPM1 expm1f
#define LOG logf
#define LOG1P log1pf
#define SQRT sqrtf
#define SIN sinf
#define COS cosf
#define TANH tanhf
#define ERF erff
#define POW powf
#define ABS fabsf
#define FLOOR floorf
#define CEIL ceilf
#define ROUND rintf
#define TRUNC truncf
#define FLOOR_DIVIDE lm_floor_dividef
#define TRUNC_DIVIDE(a, b) truncf((a) / (b))
#define REMAINDER lm_remainderf
#define ISNAN(v) ((v) != (v))

#include "backend/cpu/isa/templates/point.inc"
