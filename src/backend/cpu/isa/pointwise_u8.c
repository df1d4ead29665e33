/* Compiles elementwise loops in uint8, which serve bool too. */
#define LM_NARROW U8
#include "backend/cpu/isa/templates/pointwise_narrow.inc"
