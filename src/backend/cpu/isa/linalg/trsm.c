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

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define lm_load_part_float lm_load_part_F32
#define lm_store_part_float lm_store_part_F32
#define lm_load_part_double lm_load_part_F64
#define lm_store_part_double lm_store_part_F64

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
