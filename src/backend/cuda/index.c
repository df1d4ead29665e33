/* Gathers, scatters and sums by index tensors. Sums and index_put_ sort the indices by destination first: results are
 * the same every time, and of equal indices the last one wins, as on the CPU. Only scatter, scatter_add and
 * scatter_reduce, which have an index for every element, write in any order, and add by atomics. */
#include "index.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/sort_pairs.h"
#include "cub.h"

_Static_assert((int)LM_DIMS_MAX == (int)LM_MAX_DIMS, "kernels/merged_dims.h");

static lm_index_list one_index(const lm_tensor *index, int64_t entries, int64_t step) {
  return (lm_index_list){
      .n = 1, .kind = LM_BAD_INDEX, .index = {(const int64_t *)index->data}, .entries = {entries}, .step = {step}};
}

static lm_index_list tuple_index(const lm_list *indices, const lm_tensor *x) {
  lm_index_list index_list = {.n = indices->n, .negative = true, .kind = LM_BAD_INDEX};
  for (int k = 0; k < indices->n; k++) {
    index_list.index[k] = (const int64_t *)indices->v[k]->data;
    index_list.entries[k] = x->size[k];
    index_list.step[k] = x->stride[k];
  }
  return index_list;
}

/* Lengths and strides of a job in elements, which in_units converts to units. */
typedef struct lengths {
  int n;
  int64_t *v[4 * LM_MAX_DIMS];
} lengths;

static int in_units(size_t item, lengths *l, const void *a, const void *b) {
  int unit = lm_unit_for(lm_unit_for(LM_MAX_UNIT, (int64_t)(uintptr_t)a), (int64_t)(uintptr_t)b);
  for (int i = 0; i < l->n; i++) unit = lm_unit_for(unit, *l->v[i] * (int64_t)item);
  for (int i = 0; i < l->n; i++) *l->v[i] /= unit / (int64_t)item;
  return unit;
}

/* ---- gather, index_select, embedding, index_get */

static lm_status fetch(lm_cuda_frame *f, lm_dims *dims, lm_index_list *index_list, const lm_tensor *x, lm_tensor *out) {
  size_t item = lm_dtype_size(x->dtype);
  int unit = (int)item, last = dims->ndim - 1;
  lm_bad bad;
  NEED(lm_cuda_bad(f->device, &bad));
  if (last >= 0 && dims->stride[0][last] == 1 && dims->stride[1][last] == 0) { /* each index moves a run of elements */
    lengths l = {.n = 0};
    l.v[l.n++] = &dims->size[last];
    for (int d = 0; d < last; d++) l.v[l.n++] = &dims->stride[0][d];
    for (int k = 0; k < index_list->n; k++) l.v[l.n++] = &index_list->step[k];
    unit = in_units(item, &l, x->data, out->data);
  }
  return LAUNCH("pick", lm_index_pick(f->stream, unit, dims, index_list, x->data, out->data, bad));
}

/* Sets out[i, j] = x[index[i, j], j], shown for `dim` 0. i_stride: the index's strides, 0 where it is expanded. */
static lm_status gather_along_dim(lm_cuda_frame *f, const lm_tensor *x, int dim, const lm_tensor *index,
                                  const int64_t *size, const int64_t *i_stride, lm_tensor *out) {
  lm_index_list index_list = one_index(index, x->size[dim], x->stride[dim]);
  int64_t x_stride[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) x_stride[d] = d == dim ? 0 : x->stride[d];
  lm_dims dims = lm_dims_of(x->ndim, size, NULL, 2, (const int64_t *[]){x_stride, i_stride}, false);
  return fetch(f, &dims, &index_list, x, out);
}

lm_status lm_cuda_gather(const lm_gather_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return gather_along_dim(f, a->x, (int)a->dim, a->index, a->index->size, a->index->stride, out[0]);
}

static lm_status select_entries(lm_cuda_frame *f, const lm_tensor *x, int dim, const lm_tensor *index, lm_tensor *out) {
  int64_t i_stride[LM_MAX_DIMS] = {0};
  i_stride[dim] = 1;
  return gather_along_dim(f, x, dim, index, out->size, i_stride, out);
}

lm_status lm_cuda_index_select(const lm_index_select_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return select_entries(f, a->x, (int)a->dim, a->index, out[0]);
}

lm_status lm_cuda_embedding(const lm_embedding_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return select_entries(f, a->weight, 0, a->index, out[0]);
}

lm_status lm_cuda_index_get(const lm_index_get_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_index_list index_list = tuple_index(&a->indices, a->x);
  lm_dims dims = {.sides = 2};
  int order[LM_MAX_DIMS];
  lm_dims_order(out[0]->ndim, out[0]->stride, order);
  for (int i = 0; i < out[0]->ndim; i++) {
    int d = order[i];
    lm_dims_push(&dims, out[0]->size[d], (int64_t[]){d ? a->x->stride[a->indices.n + d - 1] : 0, d == 0});
  }
  return fetch(f, &dims, &index_list, a->x, out[0]);
}

/* ---- scatter, scatter_add, scatter_reduce */

_Static_assert((int)LM_INTO_SUM == (int)LM_FOLD_SUM && (int)LM_INTO_PROD == (int)LM_FOLD_PROD &&
                   (int)LM_INTO_MAX == (int)LM_FOLD_AMAX && (int)LM_INTO_MIN == (int)LM_FOLD_AMIN &&
                   (int)LM_INTO_REPLACE == (int)LM_FOLD_REPLACE,
               "kernels/index.h");

/* Returns the dtype that atomic sums of `dtype` are kept in. */
static lm_dtype sum_dtype(lm_dtype dtype) {
  if (lm_dtype_is_half(dtype)) return LM_F32;
  return lm_dtype_size(dtype) < 4 ? LM_I32 : dtype;
}

lm_status lm_cuda_scatter_along(const lm_scatter_along_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *index = a->index, *src = a->src;
  lm_tensor *x = out[0], *sums = x;
  bool replace = a->how == LM_FOLD_REPLACE;
  lm_dtype dtype = replace ? x->dtype : sum_dtype(x->dtype);
  int64_t sum_stride[LM_MAX_DIMS];
  lm_bad bad;
  NEED(lm_cuda_bad(f->device, &bad));
  if (dtype != x->dtype) {
    NEED(lm_cuda_take_like(f, x, dtype, &sums));
    NEED(lm_cuda_copy(x, sums));
  }
  for (int d = 0; d < index->ndim; d++) sum_stride[d] = d == a->dim ? 0 : sums->stride[d];
  lm_dims dims =
      lm_dims_of(index->ndim, index->size, NULL, 3, (const int64_t *[]){sum_stride, index->stride, src->stride}, false);
  lm_index_list index_list = one_index(index, x->size[a->dim], sums->stride[a->dim]);
  if (replace) {
    int width = (int)lm_dtype_size(dtype);
    NEED(LAUNCH("scatter", lm_index_write(f->stream, width, &dims, &index_list, x->data, src->data, bad)));
  } else {
    NEED(LAUNCH("scatter",
                lm_index_scatter(f->stream, src->dtype, a->how, &dims, &index_list, sums->data, src->data, bad)));
  }
  if (sums != x) NEED(lm_cuda_copy(sums, x));
  return LM_OK;
}

/* ---- tril, triu */

lm_status lm_cuda_triangle(const lm_triangle_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *x = a->x;
  return LAUNCH("triangle", lm_index_triangle(f->stream, (int)lm_dtype_size(x->dtype), x->numel, x->size[x->ndim - 2],
                                              x->size[x->ndim - 1], a->diagonal, a->upper, x->data, out[0]->data));
}

/* ---- index_add, embedding_backward, index_put_ */

/* Sorts the entries of `rows` by their destinations, `count` in all, and writes or adds them there. `index_list` has
 * steps that number the destinations; drops entries whose index is `skipped`. */
static lm_status sort_and_store_rows(lm_cuda_frame *f, lm_rows *rows, const lm_index_list *index_list, int64_t n,
                                     uint64_t count, int64_t skipped, bool add) {
  lm_pairs pairs;
  void *scratch = NULL;
  lm_bad bad;
  NEED(lm_cuda_bad(f->device, &bad));
  NEED(lm_pairs_take(f, n, count < UINT32_MAX ? 4 : 8, &pairs));
  if (add) NEED(lm_cuda_take(f, lm_index_sum_scratch(rows, n), &scratch));
  NEED(LAUNCH("keys",
              lm_index_keys(f->stream, index_list, n, skipped, count, pairs.key_bytes, pairs.keys, pairs.order, bad)));
  lm_sorted entries = {.n = n, .key_bytes = pairs.key_bytes, .keys = pairs.keys, .order = pairs.order, .none = count};
  if (n > 1) {
    NEED(lm_pairs_sort(f, &pairs, lm_bits_of(count)));
    entries.keys = pairs.sorted_keys;
    entries.order = pairs.sorted;
  }
  return add ? LAUNCH("sum", lm_index_sum(f->stream, rows, &entries, scratch))
             : LAUNCH("put", lm_index_put(f->stream, rows, &entries));
}

/* Adds src [outer, n, inner] to out [outer, count, inner] at index [n]. */
static lm_status add_entries(lm_cuda_frame *f, lm_tensor *out, int64_t outer, int64_t count, int64_t inner,
                             const lm_tensor *index, int64_t skipped, const lm_tensor *src) {
  int64_t n = index->numel;
  lm_index_list index_list = one_index(index, count, 1);
  lm_rows rows = {.dtype = out->dtype,
                  .columns = {.sides = 2},
                  .nkey = 1,
                  .size = {count},
                  .stride = {inner},
                  .from = inner,
                  .dst = out->data,
                  .src = src->data};
  lm_dims_push(&rows.columns, outer, (int64_t[]){count * inner, n * inner});
  lm_dims_push(&rows.columns, inner, (int64_t[]){1, 1});
  return sort_and_store_rows(f, &rows, &index_list, n, (uint64_t)count, skipped, true);
}

lm_status lm_cuda_index_add(const lm_index_add_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *result = out[0];
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < a->dim; d++) outer *= result->size[d];
  for (int d = (int)a->dim + 1; d < result->ndim; d++) inner *= result->size[d];
  return add_entries(f, result, outer, result->size[a->dim], inner, a->index, 0, a->src);
}

lm_status lm_cuda_embedding_backward(const lm_embedding_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *result = out[0];
  size_t bytes = lm_nbytes(result);
  NEED(LAUNCH("clear", lm_index_clear(f->stream, result->data, bytes)));
  if (a->index->numel > 0) {
    NEED(add_entries(f, result, 1, a->num, result->size[1], a->index, a->padding_idx, a->grad));
  }
  return LM_OK;
}

lm_status lm_cuda_index_put_(const lm_index_put__args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *values = a->values;
  lm_tensor *x = out[0];
  int indexed = a->indices.n;
  int64_t count = 1;
  size_t item = lm_dtype_size(x->dtype);
  lm_index_list index_list = tuple_index(&a->indices, x);
  lm_rows rows = {.dtype = x->dtype,
                  .unit = (int)item,
                  .nkey = indexed,
                  .from = values->stride[0],
                  .dst = x->data,
                  .src = values->data};
  for (int k = indexed - 1; k >= 0; k--) { /* destinations are numbered row-major */
    rows.size[k] = x->size[k];
    rows.stride[k] = x->stride[k];
    index_list.step[k] = count;
    count *= x->size[k];
  }
  rows.columns = lm_dims_of(x->ndim - indexed, x->size + indexed, NULL, 2,
                            (const int64_t *[]){x->stride + indexed, values->stride + 1}, true);
  int last = rows.columns.ndim - 1;
  if (!a->accumulate && last >= 0 && rows.columns.stride[0][last] == 1 && rows.columns.stride[1][last] == 1) {
    lengths l = {.n = 0};
    l.v[l.n++] = &rows.columns.size[last];
    l.v[l.n++] = &rows.from;
    for (int d = 0; d < last; d++) {
      l.v[l.n++] = &rows.columns.stride[0][d];
      l.v[l.n++] = &rows.columns.stride[1][d];
    }
    for (int k = 0; k < indexed; k++) l.v[l.n++] = &rows.stride[k];
    rows.unit = in_units(item, &l, x->data, values->data);
  }
  return sort_and_store_rows(f, &rows, &index_list, values->size[0], (uint64_t)count, 0, a->accumulate);
}

/* ---- nonzero, one_hot */

/* Lists the nonzero elements of x, a contiguous bool mask. The op layer has waited for their count already. */
lm_status lm_cuda_nonzero(const lm_nonzero_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *x = a->x;
  int64_t n = out[0]->size[0], *result = (int64_t *)out[0]->data;
  bool line = x->ndim == 1; /* indices are positions then */
  size_t bytes = sizeof(int64_t) * (size_t)(line ? 1 : n + 1), temp_bytes = 0;
  void *block, *temp;
  NEED(lm_cuda_take(f, bytes, &block));
  int64_t *found = block, *index_list = line ? result : found + 1;
  NEED(LAUNCH("indices",
              lm_cub_indices(f->stream, NULL, &temp_bytes, (const uint8_t *)x->data, x->numel, index_list, found)));
  NEED(lm_cuda_take(f, temp_bytes > 0 ? temp_bytes : 1, &temp));
  NEED(LAUNCH("indices",
              lm_cub_indices(f->stream, temp, &temp_bytes, (const uint8_t *)x->data, x->numel, index_list, found)));
  if (!line) NEED(LAUNCH("unravel", lm_index_unravel(f->stream, n, index_list, x->ndim, x->size, result)));
  return LM_OK;
}

lm_status lm_cuda_one_hot(const lm_one_hot_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *result = out[0];
  lm_index_list labels = one_index(a->x, a->num_classes, 1);
  lm_bad bad;
  labels.kind = LM_BAD_LABEL;
  NEED(lm_cuda_bad(f->device, &bad));
  NEED(LAUNCH("clear", lm_index_clear(f->stream, result->data, (size_t)result->numel * sizeof(int64_t))));
  return LAUNCH("ones", lm_index_one_hot(f->stream, &labels, a->x->numel, (int64_t *)result->data, bad));
}
