/* Elementwise loops in uint8, which serve bool too. */
#define LM_NARROW U8
#include "backend/cpu/isa/templates/point_narrow.inc"
