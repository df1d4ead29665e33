#include "backend/cpu/isa/linalg/householder.h"

#include <math.h>
#include <stddef.h>

#include "backend/cpu/isa/elem.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define TABLE lm_reflections_F32
#include "backend/cpu/isa/templates/householder.inc"
#undef REAL
#undef TABLE
#define REAL double
#define TABLE lm_reflections_F64
#include "backend/cpu/isa/templates/householder.inc"
