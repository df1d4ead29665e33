/* Dropout over a dense x; element i in memory order takes word i of the draw. */
#include "backend/cpu/isa/dropout.h"

#include <math.h>

#include "backend/cpu/cpu.h"

lm_status lm_cpu_dropout(const void *args, lm_tensor *const *out) {
  const lm_dropout_args *a = args;
  enum { PART = 4096 };
  int64_t n = a->x->numel, parts = (n + PART - 1) / PART;
  lm_draw draw = lm_generator_take(a->x->device, (uint64_t)(n + 3) / 4);
  uint32_t threshold = (uint32_t)ceil(a->p * 0x1p24);
  double scale = a->p < 1 ? 1 / (1 - a->p) : 0;
  const struct lm_dropout_loops *loops = LM_ISA_PICK(lm_dropout_loops);
#pragma omp parallel for num_threads(lm_cpu_share((double)n * 0.5))
  for (int64_t i = 0; i < parts; i++) {
    int64_t to = (i + 1) * PART < n ? (i + 1) * PART : n;
    loops->of[a->x->dtype](a->x->data, out[0]->data, (uint8_t *)out[1]->data, i * PART, to, draw, threshold, scale);
  }
  return LM_OK;
}
