#include "backend/cpu/isa/distance.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"

enum { T = LM_DISTANCE_TILE };
#define MATH LM_FN(MATH)
#define MATH_F32(name) name##f
#define MATH_F64(name) name
#define LM_TEMPLATE "backend/cpu/isa/templates/distance.inc"
#include "backend/cpu/isa/templates/each_real.inc"
