#include "backend/cpu/isa/norm.h"

#include <string.h>

#include "backend/cpu/isa/float_pack.h"

enum {
  BLOCK = 8192,  /* elements of a block: 32 KB of floats, read twice from the L1 or L2 cache */
  RUN = 2048,    /* elements of a block of a run */
  FEWEST = 8,    /* partial sums of a run */
  FETCHED = 2048 /* elements of a row that is prefetched, at most */
};

/* Returns the rows of c columns in a block: a multiple of 4, few enough for float sums to stay exact to a few ulp. */
static inline int64_t block_rows(int64_t c) {
  int64_t rows = BLOCK / c & ~(int64_t)3;
  return rows < 4 ? 4 : rows > 256 ? 256 : rows;
}

/* Partial sums of a run: four registers of each kind of sum, whose chains hide the adders' latency. */
#define LANES (LM_PACK * 16 / (int)sizeof(LM_ACC) > FEWEST ? LM_PACK * 16 / (int)sizeof(LM_ACC) : FEWEST)

/* Runs LM_EACH(i, l) for elements i < n, each with one of the lanes l. */
#define LM_OVER_LANES(n)                                       \
  do {                                                         \
    int64_t i_ = 0, n_ = (n);                                  \
    for (; i_ + LANES <= n_; i_ += LANES)                      \
      for (int l_ = 0; l_ < LANES; l_++) LM_EACH(i_ + l_, l_); \
    for (int l_ = 0; i_ + l_ < n_; l_++) LM_EACH(i_ + l_, l_); \
  } while (0)

#define INLINE static inline __attribute__((always_inline))

/* Kinds of relu in a gradient: none; masked by x; by relu's result y, or by x, each storing the masked gradient. */
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

static void add_sums(double *restrict sums, void *work, int64_t n, bool wide) {
  double *restrict d = work;
  float *restrict f = work;
  for (int64_t i = 0; wide && i < n; i++) sums[i] += d[i], d[i] = 0;
  for (int64_t i = 0; !wide && i < n; i++) sums[i] += (double)f[i], f[i] = 0;
}

#define TABLE(E)                                                                                               \
  [LM_##E] = {rows_moments_##E, rows_apply_##E, rows_sums_##E, rows_back_##E,  run_moments_##E, run_apply_##E, \
              run_sums_##E,     run_back_##E,   layer_##E,     layer_back_##E, rms_##E,         rms_back_##E}

const struct lm_norm_loops LM_ISA_NAME(lm_norm_loops) = {{TABLE(F16), TABLE(BF16), TABLE(F32), TABLE(F64)}, add_sums};
