/* Expands rows of quantized blocks, and multiplies few rows by them; formulas expand the weight for many rows. */
#include "block_linear.h"

#include "backend/cuda/cuda.h"
#include "op_args_blocks.h"

lm_status lm_cuda_expand_blocks(const lm_expand_blocks_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x;
  NEED(lm_cuda_lay_out(f, a->x, LM_CONTIGUOUS, true, &x));
  return LAUNCH("expand_blocks",
                lm_k_expand_blocks(a->kind, x->data, (float *)out[0]->data, out[0]->numel / 4, f->stream));
}

lm_status lm_cuda_block_linear(const lm_block_linear_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *weight;
  void *steps, *scale;
  NEED(lm_cuda_lay_out(f, a->weight, LM_CONTIGUOUS, true, &weight));
  NEED(lm_cuda_take(f, (size_t)a->x->numel, &steps));
  NEED(lm_cuda_take(f, (size_t)a->x->numel / 32 * sizeof(float), &scale));
  const lm_block_linear_job job = {.kind = a->kind,
                                   .rows = a->x->size[0],
                                   .n = a->x->size[1],
                                   .outs = out[0]->size[1],
                                   .x = (const float *)a->x->data,
                                   .bias = a->bias ? (const float *)a->bias->data : NULL,
                                   .weight = (const uint8_t *)weight->data,
                                   .y = (float *)out[0]->data,
                                   .steps = steps,
                                   .scale = scale};
  return LAUNCH("block_linear", lm_k_block_linear(&job, f->stream));
}
