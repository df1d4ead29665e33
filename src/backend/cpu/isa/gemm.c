#include "backend/cpu/isa/gemm.h"

#include "backend/cpu/isa/elem.h"

enum { COLUMNS = 64, NARROW = 16, DEPTH = 64 };

#define LM_E U8
#include "backend/cpu/isa/templates/gemm.inc"
#undef LM_E
#define LM_E I32
#include "backend/cpu/isa/templates/gemm.inc"
#undef LM_E
#define LM_E I64
#include "backend/cpu/isa/templates/gemm.inc"
#undef LM_E
#define LM_E F32
#include "backend/cpu/isa/templates/gemm.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/gemm.inc"
#undef LM_E

const struct lm_gemm_loops LM_ISA_NAME(lm_gemm_loops) = {gemm_U8, gemm_I32, gemm_I64, gemm_F32, gemm_F64};
