/* Sorts pairs by key, by CUB. */
#include "backend/cuda/sort_pairs.h"

#include "base/message.h"
#include "cub.h"

lm_status lm_pairs_take(lm_cuda_frame *f, int64_t n, int key_bytes, lm_pairs *pairs) {
  size_t keys = lm_round_up((size_t)n * (size_t)key_bytes, 256),
         values = lm_round_up((size_t)n * sizeof(uint32_t), 256);
  void *block;
  if (n > INT32_MAX) return lm_fail_int(lm_op_running(), "the number of entries", "at most 2^31 - 1 on CUDA", n);
  NEED(lm_cuda_take(f, 2 * (keys + values), &block));
  char *at = block;
  *pairs = (lm_pairs){.n = n,
                      .key_bytes = key_bytes,
                      .keys = at,
                      .sorted_keys = at + keys,
                      .order = (uint32_t *)(at + 2 * keys),
                      .sorted = (uint32_t *)(at + 2 * keys + values)};
  return LM_OK;
}

lm_status lm_pairs_sort(lm_cuda_frame *f, const lm_pairs *p, int bits) {
  size_t bytes = 0;
  LM_CUDA_SCRATCH temp = {0};
  NEED(LAUNCH("sort", lm_cub_sort_pairs(f->stream, NULL, &bytes, p->key_bytes, p->keys, p->sorted_keys, p->order,
                                        p->sorted, p->n, bits)));
  NEED(lm_cuda_scratch(f->device, bytes, &temp));
  return LAUNCH("sort", lm_cub_sort_pairs(f->stream, temp.p, &bytes, p->key_bytes, p->keys, p->sorted_keys, p->order,
                                          p->sorted, p->n, bits));
}
