/* Concatenates tensors along a dim. The kernel's list has no skipped tensors. */
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "op/input_layout.h"

static bool is_skipped(const lm_tensor *t) { return t->ndim == 1 && t->size[0] == 0; } /* as in PyTorch */

/* Computes output sizes and dim; *first: the first tensor not skipped, or NULL; *last: all are channels-last. */
static lm_status cat_size(const lm_cat_args *a, const lm_tensor **first, int *dim, int64_t *size, bool *last) {
  *first = NULL;
  *last = true;
  for (int i = 0; i < a->tensors.n; i++) {
    const lm_tensor *t = a->tensors.v[i];
    if (!t) return lm_fail_value("cat", lm_text("tensors[%d]", i + 1), "a tensor", "nil");
    if (t->ndim == 0)
      return lm_remedy(lm_fail_value("cat", lm_text("tensors[%d]", i + 1), "at least 1-d", "a 0-d tensor"),
                       "use lm.stack");
    if (is_skipped(t)) continue;
    if (!*first) {
      *first = t;
      NEED(lm_dim("cat", a->dim == LM_NO_DIM ? 0 : a->dim, t->ndim, dim));
      memcpy(size, t->size, sizeof t->size);
      size[*dim] = 0;
    }
    bool fits = t->ndim == (*first)->ndim;
    for (int d = 0; fits && d < t->ndim; d++) fits = d == *dim || t->size[d] == size[d];
    if (!fits) {
      return lm_fail(LM_E_SHAPE, "cat: shapes of tensors[1] and tensors[%d] must match except in dim %d, got %s and %s",
                     i + 1, *dim + 1, lm_shape_of(*first), lm_shape_of(t));
    }
    size[*dim] += t->size[*dim];
    *last = *last && lm_format_of(t) == LM_CHANNELS_LAST;
  }
  return LM_OK;
}

lm_status lm_op_cat(const lm_cat_args *a, lm_tensor **out) {
  LM_FREED lm_tensor **list = NULL;
  LM_OWNED *result = NULL;
  const lm_tensor *first;
  int dim = 0;
  int64_t size[LM_MAX_DIMS] = {0};
  bool channels_last;
  if (a->tensors.n == 0) return lm_fail_value("cat", "tensors", "a non-empty list", "{}");
  NEED(cat_size(a, &first, &dim, size, &channels_last));
  NEED(lm_check_same_device(LM_OP_cat, a->tensors.n, a->tensors.v));
  NEED(lm_tensor_empty(lm_result_type(a->tensors.n, a->tensors.v), a->tensors.v[0]->device, first ? first->ndim : 1,
                       size, first && channels_last ? LM_CHANNELS_LAST : LM_CONTIGUOUS, &result));
  if (result->numel > 0) {
    lm_cat_args args = {.tensors = {0, NULL}, .dim = dim};
    list = lm_malloc(sizeof *list * (size_t)a->tensors.n);
    if (!list) return LM_E_OOM;
    args.tensors.v = list;
    for (int i = 0; i < a->tensors.n; i++) {
      if (a->tensors.v[i]->numel > 0) list[args.tensors.n++] = a->tensors.v[i];
    }
    NEED(lm_dispatch(LM_OP_cat, result->device, &args, &result));
  }
  *out = lm_tensor_take(&result);
  return LM_OK;
}
