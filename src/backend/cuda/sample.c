/* Draws numbers by rejection, and indices by weight. Tensors are contiguous. */
#include "sample.h"

#include "backend/cuda/cuda.h"
#include "rejection.h"
#include "tensor/generator.h"

static lm_status draw_counts(lm_cuda_frame *f, lm_generator *g, const lm_tensor *x, const lm_tensor *p,
                             lm_tensor *out) {
  lm_draw d = lm_generator_take(g, f->device, (uint64_t)out->numel * LM_ROOM);
  lm_blocks_drawn draw = {d.seed, d.offset, lm_generator_extra()};
  return LAUNCH(lm_op_running(),
                lm_sample_counts(out->dtype, x->data, p ? p->data : NULL, out->data, out->numel, draw, f->stream));
}

lm_status lm_cuda_poisson(const lm_poisson_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return draw_counts(f, a->generator, a->x, NULL, out[0]);
}

lm_status lm_cuda_binomial(const lm_binomial_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return draw_counts(f, a->generator, a->count, a->prob, out[0]);
}

/* Draws indices [rows, k] by the weights x [rows, n]. */
lm_status lm_cuda_multinomial(const lm_multinomial_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  int64_t rows = a->x->size[0], n = a->x->size[1], k = a->num_samples;
  void *sums;
  NEED(lm_cuda_take(f, (size_t)a->x->numel * sizeof(double), &sums));
  lm_draw d = lm_generator_take(a->generator, f->device, ((uint64_t)(rows * k) + 1) / 2);
  lm_blocks_drawn draw = {d.seed, d.offset, lm_generator_extra()};
  NEED(LAUNCH("multinomial", lm_sample_sums(a->x->dtype, a->x->data, sums, rows, n, f->stream)));
  return LAUNCH("multinomial", lm_sample_indices(sums, (int64_t *)out[0]->data, rows, n, k, draw, f->stream));
}
