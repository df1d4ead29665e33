/* Compiles elementwise loops over float16. */
#define LM_HALF F16
#include "backend/cpu/isa/templates/pointwise_half.inc"
