/* Softmax in float. */
#include "scalar.h"

typedef float num;
#define LM_SOFTMAX_TABLE lm_softmax_f32
#define EXP lm_expf
#define LOG logf

#include "backend/cpu/isa/templates/softmax.inc"
