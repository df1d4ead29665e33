#include "backend/cpu/isa/recurrent.h"

#include "backend/cpu/isa/functions.h"

#define LM_TEMPLATE "backend/cpu/isa/templates/recurrent.inc"
#include "backend/cpu/isa/templates/each_real.inc"
