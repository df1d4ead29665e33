#include "backend/cpu/isa/optim.h"

#include "convert.h"

#define INLINE static inline __attribute__((always_inline))
#define NAMED(name, id) LM_ISA_JOIN(name, id)

/* Sums are kept in LANES parts, which vectorizes them, and in the same order at any level. */
enum { LANES = 16 };

/* ID: the dtype's; STORED: what memory holds; REAL, with its suffix: what is computed in. */
#define REAL float
#define SUFFIX f32
#define ID F16
#define STORED uint16_t
#include "backend/cpu/isa/templates/optim.inc"
#define ID BF16
#define STORED uint16_t
#include "backend/cpu/isa/templates/optim.inc"
#define ID F32
#define STORED float
#include "backend/cpu/isa/templates/optim.inc"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX f64
#define ID F64
#define STORED double
#include "backend/cpu/isa/templates/optim.inc"

#define BY_DTYPE(loop) \
  { [LM_F16] = loop##_F16, [LM_BF16] = loop##_BF16, [LM_F32] = loop##_F32, [LM_F64] = loop##_F64 }

const struct lm_optim_loops LM_ISA_NAME(lm_optim_loops) = {
#define UPDATE(family, name) [LM_OPTIM_##family] = BY_DTYPE(name),
    .update = {LM_OPTIM_EACH(UPDATE)},
    .sum_abs = BY_DTYPE(sum_abs),
    .sum_squares = BY_DTYPE(sum_squares),
    .sum_powers = BY_DTYPE(sum_powers),
    .largest_abs = BY_DTYPE(largest_abs),
};
