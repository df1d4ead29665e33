#include "backend/cpu/isa/optim.h"

#include "backend/cpu/isa/elem.h"

/* Sums are kept in LANES parts, which vectorizes them, and in the same order at any level. */
enum { LANES = 16 };

/* Name the optimizers' numbers in the precision that LM_E is computed in. */
#define LM_REAL_NAME LM_FN(LM_REAL_NAME)
#define LM_REAL_NAME_F16 f32
#define LM_REAL_NAME_BF16 f32
#define LM_REAL_NAME_F32 f32
#define LM_REAL_NAME_F64 f64

#define LM_TEMPLATE "backend/cpu/isa/templates/optim.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_optim_loops LM_ISA_NAME(lm_optim_loops) = {
#define UPDATE(family, name) [LM_OPTIM_##family] = {LM_FLOATS(name)},
    .update = {LM_OPTIM_EACH(UPDATE)},
    .sum_abs = {LM_FLOATS(sum_abs)},
    .sum_squares = {LM_FLOATS(sum_squares)},
    .sum_powers = {LM_FLOATS(sum_powers)},
    .largest_abs = {LM_FLOATS(largest_abs)},
    .rescale = {LM_FLOATS(rescale)},
};
