/* Sorts pairs by key, by CUB. */
#include "backend/cuda/sort_pairs.h"

#include "base/message.h"
#include "cub.h"

lm_status lm_pairs_open(lm_device device, int64_t n, int key_bytes, lm_pairs *pairs) {
  size_t keys = lm_round_up((size_t)n * (size_t)key_bytes, 256),
         values = lm_round_up((size_t)n * sizeof(uint32_t), 256);
  *pairs = (lm_pairs){.device = device, .n = n, .key_bytes = key_bytes, .bytes = 2 * (keys + values)};
  if (n > INT32_MAX) { return lm_fail_int(lm_op_running(), "the number of entries", "at most 2^31 - 1 on CUDA", n); }
  NEED(lm_cuda_scratch(device, pairs->bytes, &pairs->block));
  char *at = pairs->block;
  pairs->keys = at;
  pairs->sorted_keys = at + keys;
  pairs->order = (uint32_t *)(at + 2 * keys);
  pairs->sorted = (uint32_t *)(at + 2 * keys + values);
  return LM_OK;
}

lm_status lm_pairs_sort(lm_pairs *p, void *stream, int bits) {
  lm_status status = LM_OK;
  size_t bytes = 0;
  void *temp = NULL;
  TRY(LAUNCH("sort", lm_cub_sort_pairs(stream, NULL, &bytes, p->key_bytes, p->keys, p->sorted_keys, p->order, p->sorted,
                                       p->n, bits)));
  TRY(lm_cuda_scratch(p->device, bytes, &temp));
  status = LAUNCH("sort", lm_cub_sort_pairs(stream, temp, &bytes, p->key_bytes, p->keys, p->sorted_keys, p->order,
                                            p->sorted, p->n, bits));
  lm_cuda_scratch_done(p->device, temp, bytes);
done:
  return status;
}

void lm_pairs_close(lm_pairs *pairs) {
  if (pairs->block) lm_cuda_scratch_done(pairs->device, pairs->block, pairs->bytes);
  pairs->block = NULL;
}
