/* Compiles elementwise loops in int16. */
#define LM_NARROW I16
#include "backend/cpu/isa/templates/pointwise_narrow.inc"
