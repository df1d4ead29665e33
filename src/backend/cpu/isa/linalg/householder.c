#include "backend/cpu/isa/linalg/householder.h"

#include <math.h>
#include <stddef.h>

#include "backend/cpu/isa/elem.h"

#define LM_TEMPLATE "backend/cpu/isa/templates/householder.inc"
#include "backend/cpu/isa/templates/each_real.inc"
