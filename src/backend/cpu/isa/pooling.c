#include "backend/cpu/isa/pooling.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"

#if defined(__F16C__) /* contiguous images are read an element at a time, where one instruction is best */
#include <immintrin.h>
#undef LM_GET_F16
#define LM_GET_F16(v) _cvtsh_ss(v)
#undef LM_PUT_F16
#define LM_PUT_F16(v) _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT)
#endif

enum {
  LANES = 16, /* a vector's worth of channels */
  TILE = 256, /* channels whose partial results stay in the L1 cache */
  FEW = 1024  /* most bytes of the source for each pixel of the result that are prefetched */
};

/* Prefetches memory for the next row, which the processor does not predict if rows are short. */
LM_INLINE void fetch(const char *from, int64_t bytes, bool writes) {
  for (int64_t at = 0; at < bytes; at += 64) {
    if (writes)
      __builtin_prefetch(from + at, 1);
    else
      __builtin_prefetch(from + at, 0);
  }
}

/* Windows from .. to - 1 are equally wide, and each begins `apart` after the one before. */
typedef struct pooling_run {
  int64_t from, to, apart;
} pooling_run;

/* Returns the run of such windows around the middle one. */
static pooling_run pooling_run_of(const lm_pooling_axis *x) {
  int64_t m = x->out / 2;
  if (x->out < 2) return (pooling_run){0, 0, 1};
  pooling_run run = {m, m + 1, x->begin[m] - x->begin[m - 1]};
  int32_t wide = x->end[m] - x->begin[m];
  while (run.from > 0 && x->begin[run.from] - x->begin[run.from - 1] == run.apart &&
         x->end[run.from - 1] - x->begin[run.from - 1] == wide)
    run.from--;
  while (run.to < x->out && x->begin[run.to] - x->begin[run.to - 1] == run.apart &&
         x->end[run.to] - x->begin[run.to] == wide)
    run.to++;
  return run;
}

#define LM_TEMPLATE "backend/cpu/isa/templates/pooling_max.inc"
#include "backend/cpu/isa/templates/each_float.inc"
#include "backend/cpu/isa/templates/each_integer.inc"
#undef LM_TEMPLATE
#define LM_TEMPLATE "backend/cpu/isa/templates/pooling_avg.inc"
#define LM_E I64
#define LM_LEAST INT64_MIN
#include LM_TEMPLATE
#undef LM_E
#undef LM_LEAST
#define LM_LEAST -INFINITY
#include "backend/cpu/isa/templates/each_float.inc"
#undef LM_TEMPLATE
#define LM_TEMPLATE "backend/cpu/isa/templates/pooling_back.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_pooling_loops LM_ISA_NAME(lm_pooling_loops) = {
    .max = {LM_INTEGERS(max) LM_FLOATS(max)},
    .max_back = {LM_FLOATS(max_back)},
    .avg = {[LM_I64] = avg_I64, LM_FLOATS(avg)},
    .avg_back = {LM_FLOATS(avg_back)},
};
