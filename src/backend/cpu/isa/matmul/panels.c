#include "backend/cpu/isa/matmul/panels.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/linalg/transpose.h"
#include "backend/cpu/isa/matmul/register_tile.h"

/* Most terms for which writing c takes the time. */
enum { FEW_TERMS = 32 };

typedef lm_row_float lm_square_F32, lm_square_BF16;
typedef lm_row_double lm_square_F64;
#define lm_load_transposed_F32 lm_load_transposed_float
#define lm_load_transposed_BF16 lm_load_transposed_float
#define lm_load_transposed_F64 lm_load_transposed_double

#define MULTIPLY_ADD(sum, x, y) (sum) += (x) * (y)
#define LM_E F32
#include "backend/cpu/isa/templates/panels.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/panels.inc"
#undef LM_E
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
#include "backend/cpu/isa/templates/panels.inc"
#undef LM_E
#undef MULTIPLY_ADD
#undef PAIRS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
const struct lm_panel_loops LM_ISA_NAME(lm_panels_BF16) = {0};
#endif
