/* Compiles elementwise loops in int32. */
#define LM_NARROW I32
#include "backend/cpu/isa/templates/pointwise_narrow.inc"
