#include "backend/cpu/isa/attention.h"

#include "backend/cpu/isa/functions.h"

enum { LANES = 64 };
#define SIMD _Pragma("omp simd")

#define LM_E F32
#include "backend/cpu/isa/templates/attention.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/attention.inc"
