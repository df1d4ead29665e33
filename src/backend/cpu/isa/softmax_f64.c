/* Softmax in double. */
#include "scalar.h"

typedef double num;
#define LM_SOFTMAX_TABLE lm_softmax_f64
#define EXP exp
#define LOG log

#include "backend/cpu/isa/templates/softmax.inc"
