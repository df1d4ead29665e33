#include "backend/cpu/isa/matmul/panels.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/linalg/transpose.h"

/* Bytes of a vector, two of which are a panel's row, and how many rows of a product, at most 8, are in registers at a
 * time. */
#if defined(__AVX512F__)
enum { VECTOR = 64, TILE = 8 };
#elif defined(__AVX2__)
enum { VECTOR = 32, TILE = 6 };
#else
enum { VECTOR = 16, TILE = 6 };
#endif

typedef lm_row_float lm_square_F32;
typedef lm_row_double lm_square_F64;
#define lm_load_transposed_F32 lm_load_transposed_float
#define lm_load_transposed_F64 lm_load_transposed_double

#define LM_E F32
#include "backend/cpu/isa/templates/panels.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/panels.inc"
