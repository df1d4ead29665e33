/* Joins many tensors in one launch (cat.h). A block copies one tile of one input, which it finds by its block index. */
#include "merged_dims.cuh"
#include "tensor_chunks.cuh"
#include "types.cuh"

#include "cat.h"

enum { THREADS = 256, EACH = 4, TILE = THREADS * EACH };

/* Returns the entry of the list that this block copies. */
template <class List>
LM_DEVICE const auto &lm_cat_entry(const List &list) {
  return list.entry[lm_owner_of(list.n, blockIdx.x, [&](int i) { return list.entry[i].first_tile; })];
}

/* ---- inputs with the result's layout */

struct lm_cat_block_entry {
  const void *from;
  int64_t run, start;
  uint32_t first_tile;
  lm_divider by_run;
};

struct lm_cat_block_list {
  int n;
  int64_t outer, total;
  lm_cat_block_entry entry[LM_CAT_BLOCKS];
};

template <class U, bool WIDE>
LM_KERNEL void lm_cat_join_blocks(lm_cat_block_list list, U *to) {
  const lm_cat_block_entry &e = lm_cat_entry(list);
  const U *from = (const U *)e.from;
  int64_t n = list.outer * e.run, first = (int64_t)(blockIdx.x - e.first_tile) * TILE + threadIdx.x;
  U value[EACH];
  LM_UNROLL
  for (int j = 0; j < EACH; j++) {
    int64_t u = first + j * THREADS;
    value[j] = u < n ? from[u] : U{};
  }
  LM_UNROLL
  for (int j = 0; j < EACH; j++) {
    int64_t u = first + j * THREADS, column;
    if (u >= n) continue;
    int64_t row = lm_split<WIDE>(u, e.run, e.by_run, &column);
    to[row * list.total + e.start + column] = value[j];
  }
}

template <class U>
static int lm_cat_join_blocks_of(void *stream, int64_t outer, int64_t total, int n, const lm_cat_block *blocks,
                                 void *to) {
  lm_cat_block_list list = {};
  int64_t tiles = 0;
  bool narrow = true;
  list.n = n;
  list.outer = outer;
  list.total = total;
  for (int i = 0; i < n; i++) {
    const lm_cat_block *b = &blocks[i];
    int64_t units = outer * b->run;
    narrow = narrow && units < LM_NARROW;
    list.entry[i] = {b->from, b->run, b->start, (uint32_t)tiles, lm_split_divider(b->run)};
    tiles += units / TILE + (units % TILE != 0);
  }
  return lm_launch(narrow ? lm_cat_join_blocks<U, false> : lm_cat_join_blocks<U, true>, (unsigned)tiles, THREADS, 0,
                   stream, list, (U *)to);
}

int lm_cat_blocks(void *stream, int unit, int64_t outer, int64_t total, int n, const lm_cat_block *blocks, void *to) {
  auto join = [=](auto u) { return lm_cat_join_blocks_of<decltype(u)>(stream, outer, total, n, blocks, to); };
  return unit == 16 ? join(uint4{}) : lm_for_width(unit, join);
}

/* ---- any strides and dtypes */

struct lm_cat_part_entry {
  const void *from;
  void *to;
  int dtype;
  uint32_t first_tile;
  int64_t size, stride[LM_DIMS_MAX];
  lm_divider by_size;
};

struct lm_cat_part_list {
  int n, ndim, dim;
  int64_t rest; /* elements of an input for one index of `dim` */
  int64_t size[LM_DIMS_MAX], stride[LM_DIMS_MAX];
  lm_divider divider[LM_DIMS_MAX];
  lm_cat_part_entry entry[LM_CAT_PARTS];
};

template <class T, class S>
LM_DEVICE T lm_cat_converted(const void *from, int64_t at) {
  return lm_put<T>(lm_get<lm_compute<S>>(((const S *)from)[at]));
}

template <class T>
LM_DEVICE T lm_cat_load(int dtype, const void *from, int64_t at) {
  switch (dtype) {
#define X(id, ...) \
  case LM_##id: return lm_cat_converted<T, lm_stored_##id>(from, at);
    LM_DTYPES(X)
#undef X
    default: return T{};
  }
}

template <class T, bool WIDE>
LM_KERNEL void lm_cat_join_parts(lm_cat_part_list list) {
  const lm_cat_part_entry &e = lm_cat_entry(list);
  int64_t n = list.rest * e.size, first = (int64_t)(blockIdx.x - e.first_tile) * TILE + threadIdx.x;
  for (int j = 0; j < EACH; j++) {
    int64_t u = first + j * THREADS, from = 0, to = 0;
    if (u >= n) return;
    for (int d = list.ndim - 1; d >= 0; d--) {
      int64_t position = u;
      if (d > 0 && d == list.dim) {
        u = lm_split<WIDE>(u, e.size, e.by_size, &position);
      } else if (d > 0) {
        u = lm_split<WIDE>(u, list.size[d], list.divider[d], &position);
      }
      from += position * e.stride[d];
      to += position * list.stride[d];
    }
    ((T *)e.to)[to] = lm_cat_load<T>(e.dtype, e.from, from);
  }
}

template <class T>
static int lm_cat_join_parts_of(void *stream, const lm_cat_shape *shape, int n, const lm_cat_part *parts) {
  lm_cat_part_list list = {};
  int64_t tiles = 0;
  bool narrow = true;
  list.n = n;
  list.ndim = shape->ndim;
  list.dim = shape->dim;
  list.rest = 1;
  for (int d = 0; d < shape->ndim; d++) {
    list.size[d] = shape->size[d];
    list.stride[d] = shape->stride[d];
    if (d == shape->dim) continue;
    list.rest *= shape->size[d];
    list.divider[d] = lm_split_divider(shape->size[d]);
  }
  for (int i = 0; i < n; i++) {
    const lm_cat_part *p = &parts[i];
    lm_cat_part_entry *e = &list.entry[i];
    int64_t units = list.rest * p->size;
    narrow = narrow && units < LM_NARROW;
    e->from = p->from;
    e->to = p->to;
    e->dtype = p->dtype;
    e->first_tile = (uint32_t)tiles;
    e->size = p->size;
    memcpy(e->stride, p->stride, sizeof e->stride);
    e->by_size = lm_split_divider(p->size);
    tiles += units / TILE + (units % TILE != 0);
  }
  return lm_launch(narrow ? lm_cat_join_parts<T, false> : lm_cat_join_parts<T, true>, (unsigned)tiles, THREADS, 0,
                   stream, list);
}

int lm_cat_parts(void *stream, const lm_cat_shape *shape, int n, const lm_cat_part *parts) {
  return lm_for_dtype(shape->dtype, [=](auto t) { return lm_cat_join_parts_of<decltype(t)>(stream, shape, n, parts); });
}
