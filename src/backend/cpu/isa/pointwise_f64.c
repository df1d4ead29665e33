/* Compiles elementwise loops in double. */
#include "backend/cpu/isa/functions.h"

typedef double num;
#define LM_TEMPLATE "backend/cpu/isa/templates/pointwise_memory.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

#define LM_E F64
#define LM_REAL
#define LM_DOUBLE
#include "backend/cpu/isa/templates/pointwise.inc"
