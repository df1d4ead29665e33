#include "backend/cpu/isa/pooling.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"

enum {
  LANES = 16, /* a vector's worth of channels */
  TILE = 256  /* channels whose partial results stay in the first-level cache */
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define LM_E U8
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E I32
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E I64
#include "backend/cpu/isa/templates/pooling_avg.inc"
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E F16
#include "backend/cpu/isa/templates/pooling_avg.inc"
#include "backend/cpu/isa/templates/pooling_back.inc"
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E BF16
#include "backend/cpu/isa/templates/pooling_avg.inc"
#include "backend/cpu/isa/templates/pooling_back.inc"
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E F32
#include "backend/cpu/isa/templates/pooling_avg.inc"
#include "backend/cpu/isa/templates/pooling_back.inc"
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/pooling_avg.inc"
#include "backend/cpu/isa/templates/pooling_back.inc"
#include "backend/cpu/isa/templates/pooling_max.inc"
#undef LM_E

#define FLOATS(name) [LM_F16] = name##_F16, [LM_BF16] = name##_BF16, [LM_F32] = name##_F32, [LM_F64] = name##_F64

const struct lm_pool_loops LM_ISA_NAME(lm_pool_loops) = {
    .max = {[LM_U8] = max_U8, [LM_I32] = max_I32, [LM_I64] = max_I64, FLOATS(max)},
    .max_back = {FLOATS(max_back)},
    .avg = {[LM_I64] = avg_I64, FLOATS(avg)},
    .avg_back = {FLOATS(avg_back)},
};
