#include "backend/cpu/isa/norm.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"

enum {
  BLOCK = 8192,  /* elements of a block: 32 KB of floats, read twice from the near caches */
  RUN = 2048,    /* elements of a block of a run */
  LANES = 64,    /* partial sums of a run: independent chains hide the adders' latency */
  FETCHED = 2048 /* elements of a row that is asked for ahead, at most */
};

/* Rows of c columns in a block: a multiple of 4, few enough for float sums to stay exact to a few ulp. */
static inline int64_t block_rows(int64_t c) {
  int64_t rows = BLOCK / c & ~(int64_t)3;
  return rows < 4 ? 4 : rows > 256 ? 256 : rows;
}

#define INLINE static inline __attribute__((always_inline))

/* Where relu's gradient is asked for, by what its result is known, and whether the masked gradient is kept. */
typedef enum relu_kind { NO_RELU, RELU, RELU_OF_Y, RELU_KEPT } relu_kind;

static inline relu_kind relu_kind_of(const lm_norm_back *in) {
  return !in->relu ? NO_RELU : in->y ? RELU_OF_Y : in->masked ? RELU_KEPT : RELU;
}

#define LM_TEMPLATE "backend/cpu/isa/templates/norm_rows.inc"
#include "backend/cpu/isa/templates/each_float.inc"
#undef LM_TEMPLATE
#define LM_TEMPLATE "backend/cpu/isa/templates/norm_run.inc"
#include "backend/cpu/isa/templates/each_float.inc"
#undef LM_TEMPLATE
#define LM_TEMPLATE "backend/cpu/isa/templates/norm_layer.inc"
#include "backend/cpu/isa/templates/each_float.inc"

#define TABLE(E)                                                                                               \
  [LM_##E] = {rows_moments_##E, rows_apply_##E, rows_sums_##E, rows_back_##E,  run_moments_##E, run_apply_##E, \
              run_sums_##E,     run_back_##E,   layer_##E,     layer_back_##E, rms_##E,         rms_back_##E}

const struct lm_norm_loops LM_ISA_NAME(lm_norm_loops) = {{TABLE(F16), TABLE(BF16), TABLE(F32), TABLE(F64)}};
