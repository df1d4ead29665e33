/* Runs cat: one launch for the list, or for each LM_CAT_BLOCKS (LM_CAT_PARTS) of a longer one. */
#include "cat.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/sort_pairs.h"

_Static_assert((int)LM_DIMS_MAX == (int)LM_MAX_DIMS, "kernels/merged_dims.h");

/* Returns true if t is dense with the same order of dims in memory as its part of the result. */
static bool has_layout_of(const lm_tensor *t, bool channels_last) {
  return channels_last ? lm_is_channels_last(t) : lm_is_contiguous(t);
}

/* Joins inputs with the layout of their parts: each row of the result, [outer, total], is a run of each input. */
static lm_status join_blocks(void *stream, const lm_list *list, int dim, lm_tensor *result) {
  int64_t inner = result->stride[dim], total = result->size[dim] * inner, outer = result->numel / total, start = 0;
  int item = (int)lm_dtype_size(result->dtype), unit = LM_MAX_UNIT;
  unit = lm_unit_for(unit, (int64_t)(uintptr_t)result->data);
  for (int i = 0; i < list->n; i++) {
    unit = lm_unit_for(unit, list->v[i]->size[dim] * inner * item);
    unit = lm_unit_for(unit, (int64_t)(uintptr_t)list->v[i]->data);
  }
  int64_t per_unit = unit / item; /* each run is a multiple of it, and so are the total and the starts */
  for (int done = 0; done < list->n; done += LM_CAT_BLOCKS) {
    lm_cat_block blocks[LM_CAT_BLOCKS];
    int n = list->n - done < LM_CAT_BLOCKS ? list->n - done : LM_CAT_BLOCKS;
    for (int i = 0; i < n; i++) {
      int64_t run = list->v[done + i]->size[dim] * inner / per_unit;
      blocks[i] = (lm_cat_block){list->v[done + i]->data, run, start};
      start += run;
    }
    NEED(LAUNCH("join", lm_cat_blocks(stream, unit, outer, total / per_unit, n, blocks, result->data)));
  }
  return LM_OK;
}

static lm_status join_parts(void *stream, const lm_list *list, int dim, lm_tensor *result) {
  int order[LM_MAX_DIMS];
  size_t item = lm_dtype_size(result->dtype);
  lm_cat_shape shape = {.ndim = result->ndim, .dtype = result->dtype};
  char *to = result->data;
  lm_dims_order(result->ndim, result->stride, order);
  for (int d = 0; d < result->ndim; d++) {
    if (order[d] == dim) shape.dim = d;
    shape.size[d] = result->size[order[d]];
    shape.stride[d] = result->stride[order[d]];
  }
  for (int done = 0; done < list->n; done += LM_CAT_PARTS) {
    lm_cat_part parts[LM_CAT_PARTS];
    int n = list->n - done < LM_CAT_PARTS ? list->n - done : LM_CAT_PARTS;
    for (int i = 0; i < n; i++) {
      const lm_tensor *t = list->v[done + i];
      parts[i] = (lm_cat_part){.from = t->data, .to = to, .dtype = t->dtype, .size = t->size[dim]};
      for (int d = 0; d < t->ndim; d++) parts[i].stride[d] = t->stride[order[d]];
      to += (size_t)(t->size[dim] * result->stride[dim]) * item;
    }
    NEED(LAUNCH("join", lm_cat_parts(stream, &shape, n, parts)));
  }
  return LM_OK;
}

lm_status lm_cuda_cat(const lm_cat_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *result = out[0];
  bool channels_last = !lm_is_contiguous(result), blocks = true;
  for (int i = 0; i < a->tensors.n; i++) {
    const lm_tensor *t = a->tensors.v[i];
    blocks = blocks && t->dtype == result->dtype && has_layout_of(t, channels_last);
  }
  return (blocks ? join_blocks : join_parts)(f->stream, &a->tensors, (int)a->dim, result);
}
