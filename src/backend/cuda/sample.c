/* Numbers drawn by rejection, and positions drawn by weight. Tensors are contiguous. */
#include "sample.h"

#include "backend/cuda/cuda.h"
#include "rejection.h"
#include "tensor/generator.h"

static lm_status draw_counts(const char *name, lm_generator *g, const lm_tensor *x, const lm_tensor *p,
                             lm_tensor *out) {
  void *stream;
  NEED(lm_cuda_enter(out->device, &stream));
  lm_draw d = lm_generator_take(g, out->device, (uint64_t)out->numel * LM_ROOM);
  lm_blocks_drawn draw = {d.seed, d.offset, lm_generator_extra()};
  return LAUNCH(name, lm_sample_counts(out->dtype, x->data, p ? p->data : NULL, out->data, out->numel, draw, stream));
}

lm_status lm_cuda_poisson(const void *args, lm_tensor *const *out) {
  const lm_poisson_args *a = args;
  return draw_counts("poisson", a->generator, a->x, NULL, out[0]);
}

lm_status lm_cuda_binomial(const void *args, lm_tensor *const *out) {
  const lm_binomial_args *a = args;
  return draw_counts("binomial", a->generator, a->count, a->prob, out[0]);
}

/* x [rows, n] -> positions [rows, k]. */
lm_status lm_cuda_multinomial(const void *args, lm_tensor *const *out) {
  const lm_multinomial_args *a = args;
  lm_status status;
  int64_t rows = a->x->size[0], n = a->x->size[1], k = a->num_samples;
  size_t bytes = (size_t)a->x->numel * sizeof(double);
  void *stream, *sums = NULL;
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(lm_cuda_scratch(out[0]->device, bytes, &sums));
  lm_draw d = lm_generator_take(a->generator, out[0]->device, ((uint64_t)(rows * k) + 1) / 2);
  lm_blocks_drawn draw = {d.seed, d.offset, lm_generator_extra()};
  TRY(LAUNCH("multinomial", lm_sample_sums(a->x->dtype, a->x->data, sums, rows, n, stream)));
  TRY(LAUNCH("multinomial", lm_sample_indices(sums, (int64_t *)out[0]->data, rows, n, k, draw, stream)));
done:
  if (sums) lm_cuda_scratch_done(out[0]->device, sums, bytes);
  return status;
}
