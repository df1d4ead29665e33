#include "backend/cpu/isa/matmul/panels.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/linalg/transpose.h"
#include "backend/cpu/isa/matmul/register_tile.h"

/* Most terms for which writing c takes the time. */
enum { FEW_TERMS = 32 };

typedef lm_row_F32 lm_row_BF16;
#define lm_load_transposed_BF16 lm_load_transposed_F32

#define MULTIPLY_ADD(sum, x, y) (sum) += (x) * (y)
#define LM_TEMPLATE "backend/cpu/isa/templates/panels.inc"
#include "backend/cpu/isa/templates/each_real.inc"
#undef MULTIPLY_ADD

/* Terms of bfloat16 are in pairs, 4 bytes, which one instruction multiplies and adds. */
#if defined(__AVX512F__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512bf16")
#endif
#define PAIRS
#define MULTIPLY_ADD(sum, x, y) \
  (sum) = (vec_BF16)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)_mm512_set1_ps(x), (__m512bh)(y))
#define LM_E BF16
#include LM_TEMPLATE
#undef LM_E
#undef MULTIPLY_ADD
#undef PAIRS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
const struct lm_panel_loops LM_ISA_NAME(lm_panel_loops_BF16) = {0};
#endif
