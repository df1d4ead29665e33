/* cat. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"

/* t fills its memory in the order of its part of the result. */
static bool has_layout_of(const lm_tensor *t, bool channels_last) {
  return channels_last ? lm_is_channels_last(t) : lm_is_contiguous(t);
}

lm_status lm_cpu_cat(const void *args, lm_tensor *const *out) {
  const lm_cat_args *a = args;
  lm_tensor *result = out[0];
  int dim = (int)a->dim;
  size_t item = lm_dtype_size(result->dtype);
  bool channels_last = !lm_is_contiguous(result);
  bool blocks = true; /* every input lies as its part of the result does */
  for (int i = 0; i < a->tensors.n; i++) {
    blocks = blocks && a->tensors.v[i]->dtype == result->dtype && has_layout_of(a->tensors.v[i], channels_last);
  }
  if (result->numel == 0) return LM_OK;
  /* what lies outside `dim` in memory, and how many elements one step of dim takes */
  int64_t inner = result->stride[dim];
  int64_t outer = result->numel / (result->size[dim] * inner);
  const int64_t few_bytes = 32, many = 256; /* that many short pieces are quicker tensor by tensor */
  bool tiny = outer >= many && result->size[dim] * inner * (int64_t)item < few_bytes * a->tensors.n;
  if (!blocks || tiny) {
    lm_tensor part = *result; /* a header on the stack over each part in turn */
    for (int i = 0; i < a->tensors.n; i++) {
      const lm_tensor *t = a->tensors.v[i];
      part.size[dim] = t->size[dim];
      part.numel = t->numel;
      lm_status status = lm_cpu_copy(t, &part);
      if (status != LM_OK) return status;
      part.data += (size_t)(t->size[dim] * result->stride[dim]) * item;
    }
    return LM_OK;
  }
  int threads = lm_cpu_share((double)result->numel * 0.5);
  bool streams = lm_use_nontemporal(lm_nbytes(result));
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    /* threads share the work by outer index, or, where there is one only, by cutting each block */
    int64_t low = outer > 1 ? lm_cpu_share_begin(outer, t, threads) : 0;
    int64_t high = outer > 1 ? lm_cpu_share_begin(outer, t + 1, threads) : 1;
    for (int64_t o = low; o < high; o++) {
      char *to = result->data + (size_t)(o * result->size[dim] * inner) * item;
      for (int i = 0; i < a->tensors.n; i++) {
        const lm_tensor *from = a->tensors.v[i];
        int64_t run = from->size[dim] * inner;
        int64_t start = outer > 1 ? 0 : lm_cpu_share_begin(run, t, threads);
        int64_t end = outer > 1 ? run : lm_cpu_share_begin(run, t + 1, threads);
        const char *at = from->data + (size_t)(o * run + start) * item;
        lm_nontemporal_copy_if_large(streams, to + (size_t)start * item, at, (size_t)(end - start) * item);
        to += (size_t)run * item;
      }
    }
    if (streams) lm_nontemporal_fence();
  }
  return LM_OK;
}
