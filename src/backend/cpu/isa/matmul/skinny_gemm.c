#include "backend/cpu/isa/matmul/skinny_gemm.h"

#include <string.h>

#include "backend/cpu/isa/lanes.h"

/* MAX_ROWS rows are taken at once; more use the part of B that is in the cache by then. If B's rows are contiguous,
 * SUMS columns are summed at a time over DEEP of its rows, half as many for 3 rows or more: registers are few. OUTS
 * columns of a transposed B of float32 at once are the number of streams that the processor prefetches. */
enum { MAX_ROWS = 4, OUTS = 8, PACKS = 4, SUMS = 4096, DEEP = 8 };
/* For a transposed B: most rows at once, and for each number of rows the columns whose sums fill the registers. */
#if defined(__AVX512F__)
enum { DOT_ROWS = 8 };
#define EACH_DOT_ROWS(X) X(2, 8) X(3, 6) X(4, 6) X(5, 4) X(6, 4) X(7, 3) X(8, 3)
#else
enum { DOT_ROWS = 4 };
#define EACH_DOT_ROWS(X) X(2, 4) X(3, 3) X(4, 3)
#endif
/* Groups of B's rows that are prefetched before they are needed: the processor itself finds such short runs late. */
enum { AHEAD = 2 };
#define LM_TEMPLATE "backend/cpu/isa/templates/skinny_gemm.inc"
#define LM_E F32
#include LM_TEMPLATE
#undef LM_E
#define LM_E F16
#include LM_TEMPLATE
#undef LM_E
#define LM_E BF16
#include LM_TEMPLATE

const struct lm_skinny_gemm_loops LM_ISA_NAME(lm_skinny_gemm_loops) = {
    .product = {[LM_F32] = product_F32, [LM_F16] = product_F16, [LM_BF16] = product_BF16},
    .sum = {[LM_F32] = sum_F32, [LM_F16] = sum_F16, [LM_BF16] = sum_BF16},
    .finish = {[LM_F32] = finish_F32, [LM_F16] = finish_F16, [LM_BF16] = finish_BF16},
    .read = {[LM_F32] = read_F32, [LM_F16] = read_F16, [LM_BF16] = read_BF16},
};
