#include "backend/cpu/isa/gemm.h"

#include "backend/cpu/isa/lanes.h"

enum { COLUMNS = 64, NARROW = 16, TINY = 8, DEPTH = 64 };
/* Rows of C at a time, by the number of registers; terms at a time. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { SMALL_ROWS = 8, SMALL_TERMS = 64 };
#else
enum { SMALL_ROWS = 4, SMALL_TERMS = 64 };
#endif
/* For dot: PARTS vectors of running sums, which take BLOCK products before they are added up in double. */
enum { PARTS = 8, BLOCK = 4096 };

#define LM_TEMPLATE "backend/cpu/isa/templates/gemm.inc"
#include "backend/cpu/isa/templates/each_integer.inc"
#undef LM_TEMPLATE
#define LM_E F32
#include "backend/cpu/isa/templates/dot.inc"
#include "backend/cpu/isa/templates/row_dots.inc"
#include "backend/cpu/isa/templates/small_gemm.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/dot.inc"
#include "backend/cpu/isa/templates/row_dots.inc"
#include "backend/cpu/isa/templates/small_gemm.inc"
#undef LM_E
#define LM_E F16
#include "backend/cpu/isa/templates/row_dots.inc"
#undef LM_E
#define LM_E BF16
#include "backend/cpu/isa/templates/row_dots.inc"

const struct lm_gemm_loops LM_ISA_NAME(lm_gemm_loops) = {
    .of = {LM_INTEGERS(gemm)[LM_F32] = small_gemm_F32, [LM_F64] = small_gemm_F64},
    .dot = {[LM_F32] = dot_F32, [LM_F64] = dot_F64},
    .row_dots = {[LM_F32] = row_dots_F32, [LM_F64] = row_dots_F64, [LM_F16] = row_dots_F16, [LM_BF16] = row_dots_BF16},
};
