#include "backend/cpu/isa/gemm.h"

#include "backend/cpu/isa/float_pack.h"

enum { COLUMNS = 64, NARROW = 16, TINY = 8, DEPTH = 64 };
/* Of dot: PARTS vectors of running sums, into which BLOCK products go before they are added up in double. */
enum { PARTS = 8, BLOCK = 4096 };

#define LM_TEMPLATE "backend/cpu/isa/templates/gemm.inc"
#include "backend/cpu/isa/templates/each_integer.inc"
#define LM_E F32
#include LM_TEMPLATE
#include "backend/cpu/isa/templates/dot.inc"
#undef LM_E
#define LM_E F64
#include LM_TEMPLATE
#include "backend/cpu/isa/templates/dot.inc"

const struct lm_gemm_loops LM_ISA_NAME(lm_gemm_loops) = {
    .of = {LM_INTEGERS(gemm)[LM_F32] = gemm_F32, [LM_F64] = gemm_F64},
    .dot = {[LM_F32] = dot_F32, [LM_F64] = dot_F64},
};
