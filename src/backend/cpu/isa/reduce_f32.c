/* Reductions in float. */
#include "scalar.h"

typedef float num;
typedef double total;
#define LM_REDUCE_TABLE lm_reduce_f32
#define LM_FLOATING
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define ISNAN(v) ((v) != (v))
#define EXP lm_expf
#define POW powf
#define ABS fabsf

#include "backend/cpu/isa/templates/reduce.inc"
