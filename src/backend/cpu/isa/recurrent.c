#include "backend/cpu/isa/recurrent.h"

#include "backend/cpu/isa/functions.h"

/* Bytes of a vector, two of which are a panel's row, and how many rows of a product, at most 8, are in registers at a
 * time. */
#if defined(__AVX512F__)
enum { VECTOR = 64, TILE = 8 };
#elif defined(__AVX2__)
enum { VECTOR = 32, TILE = 6 };
#else
enum { VECTOR = 16, TILE = 6 };
#endif
#define SIMD _Pragma("omp simd")

#define LM_E F32
#include "backend/cpu/isa/templates/recurrent.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/recurrent.inc"
