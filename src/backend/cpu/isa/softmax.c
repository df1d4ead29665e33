#include "backend/cpu/isa/softmax.h"

#include "backend/cpu/isa/functions.h"

enum { LANES = 64, BLOCK = 1024 };
#define SIMD _Pragma("omp simd")

static int block_at(int64_t i, int64_t n) { return n - i < BLOCK ? (int)(n - i) : BLOCK; }

#define LM_E F32
#include "backend/cpu/isa/templates/softmax.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/softmax.inc"
