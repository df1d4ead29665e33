#include "backend/cpu/isa/grid_sample.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"

enum { TILE = LM_GRID_TILE, MAX_READS = 64 }; /* pixels that a point reads, at most */

#define LM_TAPS_FN LM_INLINE
#define LM_TAPS_FLOOR_F16 floorf
#define LM_TAPS_FLOOR_BF16 floorf
#define LM_TAPS_FLOOR_F32 floorf
#define LM_TAPS_FLOOR_F64 floor
#define LM_TAPS_ROUND_F16 rintf
#define LM_TAPS_ROUND_BF16 rintf
#define LM_TAPS_ROUND_F32 rintf
#define LM_TAPS_ROUND_F64 rint

#define LM_TEMPLATE "backend/cpu/isa/templates/grid_sample.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_grid_loops LM_ISA_NAME(lm_grid_loops) = {
    .forward = {LM_FLOATS(forward)},
    .input = {LM_FLOATS(input)},
    .grid = {LM_FLOATS(grid)},
};
