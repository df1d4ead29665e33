#include "backend/cpu/isa/linalg/trsm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/linalg/transpose.h"

#ifdef __clang__
#define SCALAR
#else
#define SCALAR __attribute__((optimize("no-tree-vectorize")))
#endif

#define SIMD _Pragma("omp simd")
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define ROW 8
#define TABLE lm_triangles_F32
#include "backend/cpu/isa/templates/trsm.inc"
#undef REAL
#undef TABLE
#undef ROW
#define REAL double
#define ROW 4
#define TABLE lm_triangles_F64
#include "backend/cpu/isa/templates/trsm.inc"
