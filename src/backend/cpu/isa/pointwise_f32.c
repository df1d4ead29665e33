/* Compiles elementwise loops in float. */
#include "backend/cpu/isa/functions.h"
#include "backend/cpu/isa/half_block.h"

typedef float num;
#define load_F16 load_spread_F16
#define store_F16 store_spread_F16
#define load_BF16 load_spread_BF16
#define store_BF16 store_spread_BF16
#define LM_TEMPLATE "backend/cpu/isa/templates/pointwise_memory.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"
#undef load_F16
#undef store_F16
#undef load_BF16
#undef store_BF16
#define LM_E F16
#include "backend/cpu/isa/templates/half_tiles.inc"
#undef LM_E
#define LM_E BF16
#include "backend/cpu/isa/templates/half_tiles.inc"
#undef LM_E

#define LM_E F32
#define LM_REAL
#include "backend/cpu/isa/templates/pointwise.inc"
