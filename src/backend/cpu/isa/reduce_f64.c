/* Reductions in double. */
#include "scalar.h"

typedef double num;
typedef double total;
#define LM_REDUCE_TABLE lm_reduce_f64
#define LM_FLOATING
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define ISNAN(v) ((v) != (v))
#define EXP exp
#define POW pow
#define ABS fabs

#include "backend/cpu/isa/templates/reduce.inc"
