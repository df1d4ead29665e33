/* Compiles elementwise loops in int8. */
#define LM_NARROW I8
#include "backend/cpu/isa/templates/pointwise_narrow.inc"
