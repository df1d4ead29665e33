/* Elementwise loops in float. */
#include "backend/cpu/isa/functions.h"

typedef float num;
#define LM_TEMPLATE "backend/cpu/isa/templates/point_memory.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

#define LM_E F32
#define LM_REAL
#include "backend/cpu/isa/templates/point.inc"
