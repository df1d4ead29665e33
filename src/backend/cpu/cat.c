/* cat. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"

/* t fills its memory in the order of its part of the result. */
static bool has_layout_of(const lm_tensor *t, bool channels_last) {
  return channels_last ? lm_is_channels_last(t) : lm_is_contiguous(t);
}

typedef struct cat_job {
  const lm_list *tensors;
  lm_tensor *result;
  int dim;
  int64_t inner, item; /* elements of one step of dim; bytes */
  bool streams;
} cat_job;

/* Lines of a cache first .. last - 1 of the result, in the parts of inputs that they consist of. */
static void cat_lines(void *ctx, int64_t first, int64_t last) {
  const cat_job *j = ctx;
  int64_t row = j->result->size[j->dim] * j->inner * j->item, all = (int64_t)lm_nbytes(j->result);
  int64_t to = last * LM_NONTEMPORAL_LINE < all ? last * LM_NONTEMPORAL_LINE : all;
  for (int64_t at = first * LM_NONTEMPORAL_LINE; at < to;) {
    int64_t outer = at / row, begin = outer * row;
    for (int i = 0; i < j->tensors->n && at < to; i++) {
      const lm_tensor *t = j->tensors->v[i];
      int64_t run = t->size[j->dim] * j->inner * j->item, end = begin + run < to ? begin + run : to;
      if (at < end) {
        lm_nontemporal_copy_if_large(j->streams, j->result->data + at, t->data + outer * run + (at - begin),
                                     (size_t)(end - at));
        at = end;
      }
      begin += run;
    }
  }
  if (j->streams) lm_nontemporal_fence();
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
      NEED(lm_cpu_copy(t, &part));
      part.data += (size_t)(t->size[dim] * result->stride[dim]) * item;
    }
    return LM_OK;
  }
  cat_job job = {&a->tensors, result, dim, inner, (int64_t)item, lm_use_nontemporal(lm_nbytes(result))};
  int64_t lines = ((int64_t)lm_nbytes(result) + LM_NONTEMPORAL_LINE - 1) / LM_NONTEMPORAL_LINE;
  lm_parallel(lines, (double)result->numel * 0.5, 0, cat_lines, &job);
  return LM_OK;
}
