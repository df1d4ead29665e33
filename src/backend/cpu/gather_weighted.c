/* Weighted sums of elements, and their gradients: units of work shared among threads. The loops are
 * isa/gather_weighted.c. */
#include "backend/cpu/isa/gather_weighted.h"

#include <omp.h>

#include "backend/cpu/cpu.h"
#include "device/alloc.h"

/* Each thread takes one range of the units, and its own piece of the scratch. */
static void run_units(lm_gather_weighted_loop loop, const lm_gather_weighted_work *work, int64_t units, int threads,
                      char *scratch, size_t piece) {
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

static int threads_for(const lm_gather_weighted_call *s) {
  return lm_cpu_share((double)s->n * (double)s->c * (double)s->p * (double)s->i * (double)s->j);
}

lm_status lm_cpu_gather_weighted(const void *args, lm_tensor *const *out) {
  lm_gather_weighted_work work = {.call = lm_gather_weighted_call_of(LM_OP_gather_weighted, args, out)};
  const lm_gather_weighted_call *s = &work.call;
  int threads = threads_for(s);
  work.width = s->i == 1 ? (s->p < 512 ? s->p : 512) : s->p;
  work.c_width = s->c;
  int64_t wanted = lm_ceil_div(4 * threads, s->n * lm_ceil_div(s->p, work.width)); /* pieces of the channels */
  if (wanted > 1) work.c_width = lm_ceil_div(s->c, wanted);
  int64_t strips = s->n * lm_ceil_div(s->c, work.c_width);
  if (s->i > 1 && strips < 4 * threads) work.width = lm_ceil_div(s->p, lm_ceil_div(4 * threads, strips));
  run_units(LM_ISA_PICK(lm_gather_weighted_loops)->forward[out[0]->dtype], &work,
            strips * lm_ceil_div(s->p, work.width), threads, NULL, 0);
  return LM_OK;
}

lm_status lm_cpu_gather_weighted_input(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  lm_gather_weighted_work work = {.call = lm_gather_weighted_call_of(LM_OP_gather_weighted_input, args, out)};
  const lm_gather_weighted_call *s = &work.call;
  int threads = threads_for(s);
  void *scratch = NULL;
  size_t piece = 0, bytes = 0;
  work.width = s->i;
  work.c_width = s->i == 1 ? LM_GATHER_WEIGHTED_GROUP : 1;
  if (s->i > 1 && s->n * s->c < threads) {
    work.width = lm_ceil_div(s->i, lm_ceil_div(threads, s->n * s->c));
    if (work.width < 16) work.width = s->i < 16 ? s->i : 16; /* whole cache lines */
  }
  if (lm_dtype_size(out[0]->dtype) < sizeof(float)) {
    piece = (size_t)(work.c_width * s->m * work.width) * sizeof(float);
    bytes = piece * (size_t)threads;
    TRY(lm_device_alloc(out[0]->device, bytes, &scratch));
  }
  run_units(LM_ISA_PICK(lm_gather_weighted_loops)->input[out[0]->dtype], &work,
            s->n * lm_ceil_div(s->c, work.c_width) * lm_ceil_div(s->i, work.width), threads, scratch, piece);
done:
  if (scratch) lm_device_free(out[0]->device, scratch, bytes);
  return status;
}

lm_status lm_cpu_gather_weighted_weight(const void *args, lm_tensor *const *out) {
  lm_gather_weighted_work work = {.call = lm_gather_weighted_call_of(LM_OP_gather_weighted_weight, args, out),
                                  .width = 512};
  const lm_gather_weighted_call *s = &work.call;
  run_units(LM_ISA_PICK(lm_gather_weighted_loops)->weight[s->x->dtype], &work,
            s->n * s->j * lm_ceil_div(s->p, work.width), threads_for(s), NULL, 0);
  return LM_OK;
}
