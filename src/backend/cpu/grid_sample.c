/* Splits grid_sample and its gradients into units of work for threads. The loops are in isa/grid_sample.c. */
#include "backend/cpu/isa/grid_sample.h"

#include "backend/cpu/cpu.h"
#include "op_args_resampling.h"
#include "op_ids.h"

static double grid_sample_ns(const lm_grid_call *s) {
  double taps = s->dims == 3 ? s->taps * s->taps * s->taps : s->taps * s->taps;
  return (double)s->n * (double)s->p * (taps + (double)s->c * taps);
}

lm_status lm_cpu_grid_sample(const lm_grid_sample_args *a, lm_tensor *const *out) {
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample, a, out), .points = LM_GRID_TILE};
  const lm_grid_call *s = &work.call;
  return lm_parallel(s->n * lm_ceil_div(s->p, work.points), grid_sample_ns(s), 0,
                     LM_ISA_PICK(lm_grid_loops)->forward[out[0]->dtype], &work);
}

lm_status lm_cpu_grid_sample_grid(const lm_grid_sample_grid_args *a, lm_tensor *const *out) {
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample_grid, a, out), .points = LM_GRID_TILE};
  const lm_grid_call *s = &work.call;
  return lm_parallel(s->n * lm_ceil_div(s->p, work.points), grid_sample_ns(s), 0,
                     LM_ISA_PICK(lm_grid_loops)->grid[out[0]->dtype], &work);
}

/* Computes the input's gradient. A unit has channels of an image, so that no two threads add to one pixel. */
lm_status lm_cpu_grid_sample_input(const lm_grid_sample_input_args *a, lm_tensor *const *out) {
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample_input, a, out)};
  const lm_grid_call *s = &work.call;
  size_t scratch = 0;
  int64_t parts = lm_ceil_div(lm_threads_for(grid_sample_ns(s)), s->n);
  work.channels = s->last ? lm_ceil_div(s->c, parts) : s->c < 16 ? s->c : 8;
  if (s->last && work.channels < 16) work.channels = s->c < 16 ? s->c : 16;
  if (!s->last && parts > 1 && lm_ceil_div(s->c, parts) < work.channels) work.channels = lm_ceil_div(s->c, parts);
  if (lm_dtype_size((lm_dtype)out[0]->dtype) < sizeof(float)) scratch = (size_t)(work.channels * s->m) * sizeof(float);
  return lm_parallel(s->n * lm_ceil_div(s->c, work.channels), grid_sample_ns(s), scratch,
                     LM_ISA_PICK(lm_grid_loops)->input[out[0]->dtype], &work);
}
