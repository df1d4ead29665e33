/* Elementwise loops in int32. */
#define LM_NARROW I32
#include "backend/cpu/isa/templates/point_narrow.inc"
