#include "backend/cpu/isa/distance.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"

enum { T = LM_DISTANCE_TILE };
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define MATH(name) name##f
#define TABLE lm_distance_F32
#include "backend/cpu/isa/templates/distance.inc"
#undef REAL
#undef MATH
#undef TABLE
#define REAL double
#define MATH(name) name
#define TABLE lm_distance_F64
#include "backend/cpu/isa/templates/distance.inc"
