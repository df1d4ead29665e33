/* Splits weighted sums of elements, and their gradients, into units of work for threads. The loops are in
 * isa/gather_weighted.c. */
#include "backend/cpu/isa/gather_weighted.h"

#include "backend/cpu/cpu.h"
#include "op_args_resampling.h"
#include "op_ids.h"

static double gather_weighted_ns(const lm_gather_weighted_job *s) {
  return (double)s->n * (double)s->c * (double)s->p * (double)s->i * (double)s->j;
}

lm_status lm_cpu_gather_weighted(const lm_gather_weighted_args *a, lm_tensor *const *out) {
  lm_gather_weighted_work work = {.call = lm_gather_weighted_job_of(LM_OP_gather_weighted, a, out)};
  const lm_gather_weighted_job *s = &work.call;
  int threads = lm_threads_for(gather_weighted_ns(s));
  work.width = s->i == 1 ? (s->p < 512 ? s->p : 512) : s->p;
  work.c_width = s->c;
  int64_t wanted = lm_ceil_div(4 * threads, s->n * lm_ceil_div(s->p, work.width)); /* pieces of the channels */
  if (wanted > 1) work.c_width = lm_ceil_div(s->c, wanted);
  int64_t strips = s->n * lm_ceil_div(s->c, work.c_width);
  if (s->i > 1 && strips < 4 * threads) work.width = lm_ceil_div(s->p, lm_ceil_div(4 * threads, strips));
  return lm_parallel(strips * lm_ceil_div(s->p, work.width), gather_weighted_ns(s), 0,
                     LM_ISA_PICK(lm_gather_weighted_loops)->forward[out[0]->dtype], &work);
}

lm_status lm_cpu_gather_weighted_input(const lm_gather_weighted_input_args *a, lm_tensor *const *out) {
  lm_gather_weighted_work work = {.call = lm_gather_weighted_job_of(LM_OP_gather_weighted_input, a, out)};
  const lm_gather_weighted_job *s = &work.call;
  int threads = lm_threads_for(gather_weighted_ns(s));
  size_t scratch = 0;
  work.width = s->i;
  work.c_width = s->i == 1 ? LM_GATHER_WEIGHTED_GROUP : 1;
  if (s->i > 1 && s->n * s->c < threads) {
    work.width = lm_ceil_div(s->i, lm_ceil_div(threads, s->n * s->c));
    if (work.width < 16) work.width = s->i < 16 ? s->i : 16; /* whole cache lines */
  }
  if (lm_dtype_size((lm_dtype)out[0]->dtype) < sizeof(float))
    scratch = (size_t)(work.c_width * s->m * work.width) * sizeof(float);
  return lm_parallel(s->n * lm_ceil_div(s->c, work.c_width) * lm_ceil_div(s->i, work.width), gather_weighted_ns(s),
                     scratch, LM_ISA_PICK(lm_gather_weighted_loops)->input[out[0]->dtype], &work);
}

lm_status lm_cpu_gather_weighted_weight(const lm_gather_weighted_weight_args *a, lm_tensor *const *out) {
  lm_gather_weighted_work work = {.call = lm_gather_weighted_job_of(LM_OP_gather_weighted_weight, a, out),
                                  .width = 512};
  const lm_gather_weighted_job *s = &work.call;
  return lm_parallel(s->n * s->j * lm_ceil_div(s->p, work.width), gather_weighted_ns(s), 0,
                     LM_ISA_PICK(lm_gather_weighted_loops)->weight[s->dtype], &work);
}
