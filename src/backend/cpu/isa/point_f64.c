/* Elementwise loops in double. */
#include "scalar.h"

typedef double num;
#define LM_POINT_TABLE lm_point_f64
#define LM_REAL

#define K(c) ((double)(c))
#define EXP exp
#define EXPM1 expm1
#define LOG log
#define LOG1P log1p
#define SQRT sqrt
#define SIN sin
#define COS cos
#define TANH tanh
#define ERF erf
#define POW pow
#define ABS fabs
#define FLOOR floor
#define CEIL ceil
#define ROUND rint
#define TRUNC trunc
#define FLOOR_DIVIDE lm_floor_divide
#define TRUNC_DIVIDE(a, b) trunc((a) / (b))
#define REMAINDER lm_remainder
#define ISNAN(v) ((v) != (v))

#include "backend/cpu/isa/templates/point.inc"
