#include "backend/cpu/isa/linalg/trsm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/lanes.h"
#include "backend/cpu/isa/linalg/transpose.h"

/* Bytes of a vector of this level: GCC keeps wider ones in memory; number of vectors that are solved at once. */
#if defined(__AVX512F__)
enum { VECTOR = 64, WIDEST = 4 };
#elif defined(__AVX2__)
enum { VECTOR = 32, WIDEST = 8 };
#else
enum { VECTOR = 16, WIDEST = 8 };
#endif

#ifdef __clang__
#define SCALAR
#else
#define SCALAR __attribute__((optimize("no-tree-vectorize")))
#endif

#define ROW (32 / (int)sizeof(LM_ELEM)) /* numbers of a row that is transposed in registers */
#define LM_TEMPLATE "backend/cpu/isa/templates/trsm.inc"
#include "backend/cpu/isa/templates/each_real.inc"
