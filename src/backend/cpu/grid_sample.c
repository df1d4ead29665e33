/* grid_sample and its gradients: units of work shared among threads. The loops are isa/grid_sample.c. */
#include "backend/cpu/isa/grid_sample.h"

#include <omp.h>

#include "backend/cpu/cpu.h"
#include "device/alloc.h"

static void run_units(lm_grid_loop loop, const lm_grid_work *work, int64_t units, int threads, char *scratch,
                      size_t piece) {
  if (threads > units) threads = (int)units;
  if (threads < 2) {
    loop(work, 0, units, scratch);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t n = omp_get_num_threads(), me = omp_get_thread_num();
    loop(work, units * me / n, units * (me + 1) / n, scratch ? scratch + (size_t)me * piece : NULL);
  }
}

static int threads_for(const lm_grid_call *s) {
  double taps = s->dims == 3 ? s->taps * s->taps * s->taps : s->taps * s->taps;
  return lm_cpu_share((double)s->n * (double)s->p * (taps + (double)s->c * taps));
}

lm_status lm_cpu_grid_sample(const void *args, lm_tensor *const *out) {
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample, args, out), .points = LM_GRID_TILE};
  const lm_grid_call *s = &work.call;
  run_units(LM_ISA_PICK(lm_grid_loops)->forward[out[0]->dtype], &work, s->n * lm_ceil_div(s->p, work.points),
            threads_for(s), NULL, 0);
  return LM_OK;
}

lm_status lm_cpu_grid_sample_grid(const void *args, lm_tensor *const *out) {
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample_grid, args, out), .points = LM_GRID_TILE};
  const lm_grid_call *s = &work.call;
  run_units(LM_ISA_PICK(lm_grid_loops)->grid[out[0]->dtype], &work, s->n * lm_ceil_div(s->p, work.points),
            threads_for(s), NULL, 0);
  return LM_OK;
}

/* Each unit has channels of an image of its own, so that no two threads add to one pixel. */
lm_status lm_cpu_grid_sample_input(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  lm_grid_work work = {.call = lm_grid_call_of(LM_OP_grid_sample_input, args, out)};
  const lm_grid_call *s = &work.call;
  int threads = threads_for(s);
  void *scratch = NULL;
  size_t piece = 0, bytes = 0;
  int64_t parts = lm_ceil_div(threads, s->n);
  work.channels = s->last ? lm_ceil_div(s->c, parts) : s->c < 16 ? s->c : 8;
  if (s->last && work.channels < 16) work.channels = s->c < 16 ? s->c : 16;
  if (!s->last && parts > 1 && lm_ceil_div(s->c, parts) < work.channels) work.channels = lm_ceil_div(s->c, parts);
  if (lm_dtype_size(out[0]->dtype) < sizeof(float)) {
    piece = (size_t)(work.channels * s->m) * sizeof(float);
    bytes = piece * (size_t)threads;
    TRY(lm_device_alloc(out[0]->device, bytes, &scratch));
  }
  run_units(LM_ISA_PICK(lm_grid_loops)->input[out[0]->dtype], &work, s->n * lm_ceil_div(s->c, work.channels), threads,
            scratch, piece);
done:
  if (scratch) lm_device_free(out[0]->device, scratch, bytes);
  return status;
}
