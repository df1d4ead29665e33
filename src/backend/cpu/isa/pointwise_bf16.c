/* Compiles elementwise loops over bfloat16. */
#define LM_HALF BF16
#include "backend/cpu/isa/templates/pointwise_half.inc"
