/* Elementwise loops in float. */
#include "backend/cpu/isa/functions.h"

typedef float num;
#define LM_TEMPLATE "backend/cpu/isa/templates/pointwise_memory.inc"
#ifdef __AVX2__
#define load_F16 load_spread_F16
#define store_F16 store_spread_F16
#define store_BF16 store_spread_BF16
#include "backend/cpu/isa/templates/each_dtype.inc"
#undef load_F16
#undef store_F16
#undef store_BF16
#include "backend/cpu/isa/templates/pointwise_half.inc"
#else
#include "backend/cpu/isa/templates/each_dtype.inc"
#endif

#define LM_E F32
#define LM_REAL
#include "backend/cpu/isa/templates/pointwise.inc"
