/* Concatenates tensors along a dim. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/nontemporal_copy.h"
#include "op_args_indexing.h"

/* Returns true if t's share of each row of the result is contiguous, and sets `pitch`, the elements from one share to
 * the next. A channels-last result requires channels-last tensors. */
static bool has_pieces(const lm_tensor *t, int dim, bool channels_last, int64_t inner, int64_t *pitch) {
  *pitch = t->size[dim] * inner;
  if (t->numel == 0) return true;
  if (channels_last) return lm_is_channels_last(t);
  int64_t expected = 1;
  for (int d = t->ndim - 1; d >= dim; expected *= t->size[d--]) {
    if (t->size[d] != 1 && t->stride[d] != expected) return false;
  }
  bool found = false;
  for (int d = dim - 1; d >= 0; d--) {
    if (t->size[d] == 1) continue;
    if (!found) *pitch = expected = t->stride[d];
    if (t->stride[d] != expected) return false;
    expected *= t->size[d];
    found = true;
  }
  return true;
}

typedef struct cat_job {
  const lm_list *tensors;
  lm_tensor *result;
  int dim;
  int64_t inner, item;  /* elements of one step of dim; bytes of an element */
  const int64_t *pitch; /* elements from piece to piece, for each tensor */
  bool streams;
} cat_job;

/* Writes cache lines first .. last - 1 of the result, from the pieces of inputs that they consist of. */
static void cat_lines(void *ctx, int64_t first, int64_t last) {
  const cat_job *j = ctx;
  int64_t row = j->result->size[j->dim] * j->inner * j->item, all = (int64_t)lm_nbytes(j->result);
  int64_t to = last * LM_NONTEMPORAL_LINE < all ? last * LM_NONTEMPORAL_LINE : all;
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, j->result->data + first * LM_NONTEMPORAL_LINE, j->streams);
  for (int64_t at = first * LM_NONTEMPORAL_LINE; at < to;) {
    int64_t outer = at / row, begin = outer * row;
    for (int i = 0; i < j->tensors->n && at < to; i++) {
      const lm_tensor *t = j->tensors->v[i];
      int64_t run = t->size[j->dim] * j->inner * j->item, end = begin + run < to ? begin + run : to;
      if (at < end) {
        lm_nontemporal_write(&w, t->data + outer * j->pitch[i] * j->item + (at - begin), (size_t)(end - at));
        at = end;
      }
      begin += run;
    }
  }
  lm_nontemporal_close(&w);
}

lm_status lm_cpu_cat(const lm_cat_args *a, lm_tensor *const *out) {
  lm_tensor *result = out[0];
  int dim = (int)a->dim;
  size_t item = lm_dtype_size(result->dtype);
  bool channels_last = !lm_is_contiguous(result);
  if (result->numel == 0) return LM_OK;
  /* outer: runs of `dim` in memory; inner: elements of one step of dim */
  int64_t inner = result->stride[dim];
  int64_t outer = result->numel / (result->size[dim] * inner);
  LM_WORKSPACE(int64_t, pitch, a->tensors.n);
  bool blocks = true; /* true if every input has the result's dtype and contiguous pieces */
  for (int i = 0; i < a->tensors.n; i++) {
    const lm_tensor *t = a->tensors.v[i];
    blocks = blocks && t->dtype == result->dtype && has_pieces(t, dim, channels_last, inner, &pitch[i]);
  }
  const int64_t few_bytes = 32, many = 256; /* for `many` pieces shorter than this, copies by tensor are quicker */
  bool tiny = outer >= many && result->size[dim] * inner * (int64_t)item < few_bytes * a->tensors.n;
  if (!blocks || tiny) {
    lm_tensor part = *result; /* header of each input's slice of the result, in turn */
    for (int i = 0; i < a->tensors.n; i++) {
      const lm_tensor *t = a->tensors.v[i];
      part.size[dim] = t->size[dim];
      part.numel = t->numel;
      NEED(lm_cpu_copy(t, &part));
      part.data += (size_t)(t->size[dim] * result->stride[dim]) * item;
    }
    return LM_OK;
  }
  cat_job job = {&a->tensors, result, dim, inner, (int64_t)item, pitch, lm_use_nontemporal(lm_nbytes(result))};
  int64_t lines = ((int64_t)lm_nbytes(result) + LM_NONTEMPORAL_LINE - 1) / LM_NONTEMPORAL_LINE;
  return lm_parallel(lines, (double)result->numel * 0.5, 0, cat_lines, &job);
}
