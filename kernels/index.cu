/* Gathers, scatters and sums by index tensors (index.h). */
#include "merged_dims.cuh"
#include "types.cuh"

#include "index.h"

enum { THREADS = 256, EACH = 4, TILE = THREADS * EACH };

/* Adds to *position the offset of entry i's indices, the first being `given`; false, with a report, if one is bad. */
LM_DEVICE bool lm_index_position(const lm_index_list &p, int64_t i, int64_t given, lm_bad bad, int64_t *position) {
  bool fits = true;
  for (int k = 0; k < p.n; k++) {
    if (k > 0) given = p.index[k][i];
    int64_t entry = p.negative && given < 0 ? given + p.entries[k] : given - 1;
    if (entry < 0 || entry >= p.entries[k]) {
      lm_report_bad(bad, p.kind, i + 1, given, p.entries[k]);
      fits = false;
    }
    *position += entry * p.step[k];
  }
  return fits;
}

/* ---- gather */

template <class U, bool WIDE>
LM_KERNEL void lm_pick_units(int64_t n, lm_dims_loops<2> dims, lm_index_list index_list, const U *x, U *out,
                             lm_bad bad) {
  int64_t first = (int64_t)blockIdx.x * TILE + threadIdx.x, offset[EACH][2] = {}, given[EACH];
  U value[EACH];
  LM_UNROLL
  for (int j = 0; j < EACH; j++) {
    int64_t u = first + j * THREADS;
    if (u < n) lm_dims_offset<WIDE>(dims, u, offset[j]);
    given[j] = index_list.index[0][offset[j][1]]; /* past the end index 0: no load is conditional */
  }
  LM_UNROLL
  for (int j = 0; j < EACH; j++) {
    value[j] = U{};
    if (first + j * THREADS >= n) continue;
    if (lm_index_position(index_list, offset[j][1], given[j], bad, &offset[j][0])) value[j] = x[offset[j][0]];
  }
  LM_UNROLL
  for (int j = 0; j < EACH; j++) {
    int64_t u = first + j * THREADS;
    if (u < n) out[u] = value[j];
  }
}

/* Calls f with an unsigned value of 1 to 16 bytes. */
template <class F>
static int lm_for_unit(int bytes, F f) {
  return bytes == 16 ? f(uint4{}) : lm_for_width(bytes, f);
}

int lm_index_pick(void *stream, int unit, const lm_dims *dims, const lm_index_list *index_list, const void *x,
                  void *out, lm_bad bad) {
  int64_t n = lm_dims_numel(dims);
  return lm_for_unit(unit, [=](auto u) {
    typedef decltype(u) U;
    return lm_launch(n < LM_NARROW ? lm_pick_units<U, false> : lm_pick_units<U, true>, lm_blocks(n, TILE, INT32_MAX),
                     THREADS, 0, stream, n, lm_dims_loops_of<2>(dims), *index_list, (const U *)x, (U *)out, bad);
  });
}

/* ---- scatter, scatter_add, scatter_reduce */

/* The type in which elements of T are summed; int32 for integers below int64, since atomics exist for it. */
template <class T>
using lm_index_sum_type =
    std::conditional_t<std::is_same_v<lm_compute<T>, int64_t> && sizeof(T) < 8, int32_t, lm_compute<T>>;

LM_DEVICE void lm_index_atomic_add(int32_t *p, int32_t v) { atomicAdd((int *)p, (int)v); }
LM_DEVICE void lm_index_atomic_add(int64_t *p, int64_t v) { atomicAdd((unsigned long long *)p, (unsigned long long)v); }
LM_DEVICE void lm_index_atomic_add(float *p, float v) { atomicAdd(p, v); }
LM_DEVICE void lm_index_atomic_add(double *p, double v) { atomicAdd(p, v); }

/* Combines `was` with v by the operation; NaN counts as both the largest and the least number. */
template <class S>
LM_DEVICE S lm_index_into(int how, S was, S v) {
  if (how == LM_INTO_PROD) return was * v;
  if (how == LM_INTO_MAX) return v != v || v > was ? v : was;
  return v != v || v < was ? v : was;
}

template <class S>
LM_DEVICE void lm_index_atomic(int how, S *p, S v) {
  typedef std::conditional_t<sizeof(S) == 8, unsigned long long, unsigned> bits;
  if (how == LM_INTO_SUM) {
    lm_index_atomic_add(p, v);
    return;
  }
  bits seen, now;
  memcpy(&now, p, sizeof now);
  do {
    S was, next;
    bits wanted;
    seen = now;
    memcpy(&was, &seen, sizeof was);
    next = lm_index_into(how, was, v);
    memcpy(&wanted, &next, sizeof wanted);
    now = atomicCAS((bits *)p, seen, wanted);
  } while (now != seen);
}

template <class T, class S, bool WIDE>
LM_KERNEL void lm_scatter_units(int64_t n, int how, lm_dims_loops<3> dims, lm_index_list index_list, S *sums,
                                const T *src, lm_bad bad) {
  int64_t u = lm_thread(), offset[3] = {0, 0, 0};
  if (u >= n) return;
  lm_dims_offset<WIDE>(dims, u, offset);
  if (lm_index_position(index_list, offset[1], index_list.index[0][offset[1]], bad, &offset[0]))
    lm_index_atomic(how, &sums[offset[0]], lm_get<S>(src[offset[2]]));
}

int lm_index_scatter(void *stream, int dtype, int how, const lm_dims *dims, const lm_index_list *index_list, void *sums,
                     const void *src, lm_bad bad) {
  int64_t n = lm_dims_numel(dims);
  return lm_for_dtype(dtype, [=](auto t) {
    typedef decltype(t) T;
    typedef lm_index_sum_type<T> S;
    return lm_launch_each(n < LM_NARROW ? lm_scatter_units<T, S, false> : lm_scatter_units<T, S, true>, n, THREADS,
                          stream, n, how, lm_dims_loops_of<3>(dims), *index_list, (S *)sums, (const T *)src, bad);
  });
}

template <class U, bool WIDE>
LM_KERNEL void lm_write_units(int64_t n, lm_dims_loops<3> dims, lm_index_list index_list, U *x, const U *src,
                              lm_bad bad) {
  int64_t u = lm_thread(), offset[3] = {0, 0, 0};
  if (u >= n) return;
  lm_dims_offset<WIDE>(dims, u, offset);
  if (lm_index_position(index_list, offset[1], index_list.index[0][offset[1]], bad, &offset[0]))
    x[offset[0]] = src[offset[2]];
}

int lm_index_write(void *stream, int width, const lm_dims *dims, const lm_index_list *index_list, void *x,
                   const void *src, lm_bad bad) {
  int64_t n = lm_dims_numel(dims);
  return lm_for_width(width, [=](auto u) {
    typedef decltype(u) U;
    return lm_launch_each(n < LM_NARROW ? lm_write_units<U, false> : lm_write_units<U, true>, n, THREADS, stream, n,
                          lm_dims_loops_of<3>(dims), *index_list, (U *)x, (const U *)src, bad);
  });
}

template <class U>
LM_KERNEL void lm_triangle_units(int64_t n, int64_t rows, int64_t columns, int64_t diagonal, bool upper, const U *x,
                                 U *out) {
  int64_t u = lm_thread();
  if (u >= n) return;
  int64_t line = u / columns, right = u - line * columns - line % rows; /* columns right of the main diagonal */
  bool kept = upper ? right >= diagonal : right <= diagonal;
  out[u] = kept ? x[u] : U{};
}

int lm_index_triangle(void *stream, int width, int64_t n, int64_t rows, int64_t columns, int64_t diagonal, bool upper,
                      const void *x, void *out) {
  return lm_for_width(width, [=](auto u) {
    typedef decltype(u) U;
    return lm_launch_each(lm_triangle_units<U>, n, THREADS, stream, n, rows, columns, diagonal, upper, (const U *)x,
                          (U *)out);
  });
}

/* ---- entries sorted by their destinations */

LM_KERNEL void lm_entry_keys(int64_t n, lm_index_list index_list, int64_t skipped, uint64_t none, int key_bytes,
                             void *keys, uint32_t *order, lm_bad bad) {
  int64_t i = lm_thread(), position = 0;
  if (i >= n) return;
  int64_t given = index_list.index[0][i];
  bool skip = skipped != 0 && given == skipped;
  uint64_t key = !skip && lm_index_position(index_list, i, given, bad, &position) ? (uint64_t)position : none;
  if (key_bytes == 8) {
    ((uint64_t *)keys)[i] = key;
  } else {
    ((uint32_t *)keys)[i] = (uint32_t)key;
  }
  order[i] = (uint32_t)i;
}

int lm_index_keys(void *stream, const lm_index_list *index_list, int64_t n, int64_t skipped, uint64_t none,
                  int key_bytes, void *keys, uint32_t *order, lm_bad bad) {
  return lm_launch_each(lm_entry_keys, n, THREADS, stream, n, *index_list, skipped, none, key_bytes, keys, order, bad);
}

LM_DEVICE uint64_t lm_index_key(const lm_sorted &e, int64_t s) {
  return e.key_bytes == 8 ? ((const uint64_t *)e.keys)[s] : ((const uint32_t *)e.keys)[s];
}

/* The dims of dst that an entry's key numbers, row-major. */
typedef struct lm_key_dims {
  int n;
  int64_t size[LM_DIMS_MAX], stride[LM_DIMS_MAX];
} lm_key_dims;

static lm_key_dims lm_key_dims_of(const lm_rows *rows) {
  lm_key_dims dims = {};
  dims.n = rows->nkey;
  for (int d = 0; d < rows->nkey; d++) dims.size[d] = rows->size[d], dims.stride[d] = rows->stride[d];
  return dims;
}

LM_DEVICE int64_t lm_key_offset(const lm_key_dims &dims, uint64_t key) {
  int64_t rest = (int64_t)key, offset = 0;
  for (int d = dims.n - 1; d > 0; d--) {
    int64_t above = rest / dims.size[d];
    offset += (rest - above * dims.size[d]) * dims.stride[d];
    rest = above;
  }
  return offset + rest * dims.stride[0];
}

/* ---- index_put_ */

template <class U, bool WIDE>
LM_KERNEL void lm_put_units(int64_t n, int64_t columns, lm_divider by_columns, lm_dims_loops<2> loops, lm_key_dims dims,
                            lm_sorted entries, int64_t from, U *dst, const U *src) {
  int64_t u = lm_thread(), column, offset[2] = {0, 0};
  if (u >= n) return;
  int64_t s = lm_split<WIDE>(u, columns, by_columns, &column);
  uint64_t key = lm_index_key(entries, s);
  if (key >= entries.none || (s + 1 < entries.n && lm_index_key(entries, s + 1) == key)) return;
  lm_dims_offset<WIDE>(loops, column, offset);
  dst[lm_key_offset(dims, key) + offset[0]] = src[(int64_t)entries.order[s] * from + offset[1]];
}

int lm_index_put(void *stream, const lm_rows *rows, const lm_sorted *entries) {
  int64_t columns = lm_dims_numel(&rows->columns), n = entries->n * columns;
  return lm_for_unit(rows->unit, [=](auto u) {
    typedef decltype(u) U;
    return lm_launch_each(n < LM_NARROW ? lm_put_units<U, false> : lm_put_units<U, true>, n, THREADS, stream, n,
                          columns, lm_split_divider(columns), lm_dims_loops_of<2>(&rows->columns), lm_key_dims_of(rows),
                          *entries, rows->from, (U *)rows->dst, (const U *)rows->src);
  });
}

/* ---- sums by destination */

enum { RUN_TILE = 64, AHEAD = 4 };

template <class T, class C>
LM_DEVICE void lm_index_grow(T *p, C by) {
  *p = lm_put<T>(lm_get<C>(*p) + by);
}

/* Sums entries in tiles of RUN_TILE, a thread for each tile and column. Equal keys of a tile become one sum. A tile's
 * first and last key may continue in a neighbor: their sums become entries 2 tile and 2 tile + 1 of `partial` [..,
 * columns], unless there is one tile (partial is NULL). The first level reads src's rows, later ones partial sums. */
template <class T, class V, class C>
LM_KERNEL void lm_index_sum_tiles(int64_t tiles, int64_t columns, lm_dims_loops<2> loops, lm_key_dims dims,
                                  lm_sorted entries, int64_t from, T *dst, const V *src, C *partial,
                                  uint64_t *partial_keys) {
  int64_t thread = lm_thread(), tile = thread / columns, column = thread - tile * columns;
  if (tile >= tiles) return;
  int64_t at[2] = {0, 0}, begin = tile * RUN_TILE;
  int64_t end = begin + RUN_TILE < entries.n ? begin + RUN_TILE : entries.n;
  lm_dims_offset<true>(loops, column, at);
  if (!entries.order) at[1] = column;
  uint64_t key = lm_index_key(entries, begin);
  const C nothing = (C)-0.0; /* -0.0 + x is x, -0.0 included */
  C sum = nothing;
  bool first = true;
  for (int64_t s = begin; s < end; s += AHEAD) {
    uint64_t next[AHEAD];
    C value[AHEAD];
    LM_UNROLL
    for (int j = 0; j < AHEAD; j++) {
      if (s + j >= end) continue;
      next[j] = lm_index_key(entries, s + j);
      value[j] = lm_get<C>(src[(entries.order ? (int64_t)entries.order[s + j] : s + j) * from + at[1]]);
    }
    LM_UNROLL
    for (int j = 0; j < AHEAD; j++) {
      if (s + j >= end) continue;
      if (next[j] != key) {
        if (first && partial) {
          partial[2 * tile * columns + column] = sum;
          if (column == 0) partial_keys[2 * tile] = key;
        } else if (key < entries.none) {
          lm_index_grow(&dst[lm_key_offset(dims, key) + at[0]], sum);
        }
        first = false;
        key = next[j];
        sum = nothing;
      }
      sum += value[j];
    }
  }
  if (!partial) {
    if (key < entries.none) lm_index_grow(&dst[lm_key_offset(dims, key) + at[0]], sum);
    return;
  }
  if (first) { /* the tile has one key; the second entry becomes a sum of nothing */
    partial[2 * tile * columns + column] = sum;
    if (column == 0) partial_keys[2 * tile] = key;
    sum = nothing;
  }
  partial[(2 * tile + 1) * columns + column] = sum;
  if (column == 0) partial_keys[2 * tile + 1] = key;
}

static int64_t lm_tiles_of(int64_t n) { return n / RUN_TILE + (n % RUN_TILE != 0); }

/* Returns the bytes that the keys and the partial sums of one level take, at most 8 bytes each. */
static size_t lm_level_bytes(int64_t entries, int64_t columns) {
  return (size_t)entries * sizeof(uint64_t) * (size_t)(columns + 1);
}

size_t lm_index_sum_scratch(const lm_rows *rows, int64_t n) {
  size_t bytes = 0;
  for (int64_t tiles = lm_tiles_of(n); tiles > 1; tiles = lm_tiles_of(2 * tiles)) {
    bytes += lm_level_bytes(2 * tiles, lm_dims_numel(&rows->columns));
  }
  return bytes;
}

template <class T>
static int lm_index_sum_of(void *stream, const lm_rows *rows, const lm_sorted *entries, void *scratch) {
  typedef lm_compute<T> C;
  int64_t columns = lm_dims_numel(&rows->columns), from = rows->from;
  lm_dims_loops<2> loops = lm_dims_loops_of<2>(&rows->columns);
  lm_key_dims dims = lm_key_dims_of(rows);
  lm_sorted level = *entries;
  T *dst = (T *)rows->dst;
  char *free = (char *)scratch;
  const C *sums = NULL;
  for (;;) {
    int64_t tiles = lm_tiles_of(level.n);
    uint64_t *keys = tiles > 1 ? (uint64_t *)free : NULL;
    C *partial = tiles > 1 ? (C *)(keys + 2 * tiles) : NULL;
    auto launch = [&](auto kernel, auto src) {
      return lm_launch_each(kernel, tiles * columns, THREADS, stream, tiles, columns, loops, dims, level, from, dst,
                            src, partial, keys);
    };
    int error =
        sums ? launch(lm_index_sum_tiles<T, C, C>, sums) : launch(lm_index_sum_tiles<T, T, C>, (const T *)rows->src);
    if (error || !partial) return error;
    free += lm_level_bytes(2 * tiles, columns);
    level.n = 2 * tiles;
    level.key_bytes = 8;
    level.keys = keys;
    level.order = NULL;
    sums = partial;
    from = columns;
  }
}

int lm_index_sum(void *stream, const lm_rows *rows, const lm_sorted *entries, void *scratch) {
  return lm_for_dtype(rows->dtype,
                      [=](auto t) { return lm_index_sum_of<decltype(t)>(stream, rows, entries, scratch); });
}

/* ---- one_hot, nonzero */

int lm_index_clear(void *stream, void *p, size_t bytes) {
  return (int)cudaMemsetAsync(p, 0, bytes, (cudaStream_t)stream);
}

LM_KERNEL void lm_one_hot_rows(int64_t n, lm_index_list labels, int64_t *out, lm_bad bad) {
  int64_t i = lm_thread(), position = 0;
  if (i < n && lm_index_position(labels, i, labels.index[0][i], bad, &position))
    out[i * labels.entries[0] + position] = 1;
}

int lm_index_one_hot(void *stream, const lm_index_list *labels, int64_t n, int64_t *out, lm_bad bad) {
  return lm_launch_each(lm_one_hot_rows, n, THREADS, stream, n, *labels, out, bad);
}

template <bool WIDE>
LM_KERNEL void lm_unravel_rows(int64_t n, const int64_t *positions, lm_dims_loops<1> dims, int64_t *out) {
  int64_t i = lm_thread();
  if (i >= n) return;
  int64_t rest = positions[i] - 1, position, *row = out + i * dims.ndim;
  for (int d = dims.ndim - 1; d > 0; d--) {
    rest = lm_split<WIDE>(rest, dims.size[d], dims.divider[d], &position);
    row[d] = position + 1;
  }
  row[0] = rest + 1;
}

int lm_index_unravel(void *stream, int64_t n, const int64_t *positions, int ndim, const int64_t *size, int64_t *out) {
  lm_dims dims = {};
  dims.ndim = ndim;
  for (int d = 0; d < ndim; d++) dims.size[d] = size[d];
  return lm_launch_each(lm_dims_numel(&dims) < LM_NARROW ? lm_unravel_rows<false> : lm_unravel_rows<true>, n, THREADS,
                        stream, n, positions, lm_dims_loops_of<1>(&dims), out);
}
