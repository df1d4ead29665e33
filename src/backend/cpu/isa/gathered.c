#include "backend/cpu/isa/gathered.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/matmul/register_tile.h"

#define LM_E F32
#include "backend/cpu/isa/templates/gathered.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/gathered.inc"
