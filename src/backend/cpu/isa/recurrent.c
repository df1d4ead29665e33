#include "backend/cpu/isa/recurrent.h"

#include "backend/cpu/isa/functions.h"

#define LM_E F32
#include "backend/cpu/isa/templates/recurrent.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/recurrent.inc"
