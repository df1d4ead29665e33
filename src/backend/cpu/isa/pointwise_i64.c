/* Compiles elementwise loops in int64, for every integer dtype and bool. */
#include "backend/cpu/isa/functions.h"

typedef int64_t num;
#define LM_TEMPLATE "backend/cpu/isa/templates/pointwise_memory.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

#define LM_E I64
#define LM_WHOLE
#include "backend/cpu/isa/templates/pointwise.inc"
