/* Reduces each channel of a large tensor to two numbers (mean and deviation, or two sums), in two passes, for batch
 * norm and layer norm. Each block reduces one part of some channels; a small kernel joins the parts. Within a thread
 * sums are kept in the compute type for at most LM_NORM_CHUNK elements, then in double. No atomics: results are the
 * same from run to run. */
#pragma once

#include "norm.h"
#include "vectors.cuh"

enum {
  LM_NORM_CHUNK = 64,
  LM_COLUMNS_BLOCK = 512, /* threads; they and a row's share of them are powers of two */
  LM_PLANES_BLOCK = 256,
};

LM_DEVICE double lm_value_at(const lm_values &n, int64_t i) { return lm_number_at(n.data, n.dtype, i * n.stride); }
LM_DEVICE void lm_put_value(const lm_values &n, int64_t i, double value) {
  lm_put_number(n.data, n.dtype, i * n.stride, value);
}

/* A result over n elements: two sums a and b; or the mean a and the sum b of squared distances from it. */
struct lm_channel_sums {
  double n, a, b;
};

struct lm_join_sums {
  LM_DEVICE lm_channel_sums operator()(lm_channel_sums x, lm_channel_sums y) const {
    return {x.n + y.n, x.a + y.a, x.b + y.b};
  }
  /* Returns the sums of a chunk's n elements. */
  template <class C>
  static LM_DEVICE lm_channel_sums chunk(double n, const C &, double a, double b) {
    return {n, a, b};
  }
};

/* Joins moments by Chan, Golub, LeVeque, "Updating formulae … for computing sample variances", 1979. */
struct lm_join_moments {
  LM_DEVICE lm_channel_sums operator()(lm_channel_sums x, lm_channel_sums y) const {
    if (y.n == 0) return x;
    double n = x.n + y.n, delta = y.a - x.a, portion = y.n / n;
    return {n, x.a + delta * portion, x.b + y.b + delta * delta * x.n * portion};
  }
  /* Returns the moments of a chunk; a and b are sums of distances from `center` and of their squares. */
  static LM_DEVICE lm_channel_sums chunk(double n, double center, double a, double b) {
    double off = a / n, squares = b - a * off;
    return {n, center + off, squares < 0 ? 0 : squares};
  }
};

/* A thread's walk down its columns: the offset and the row of its k-th pack. */
struct lm_column_walk {
  int64_t first, pitch, first_row, step;
  LM_DEVICE int64_t at(int64_t k) const { return first + k * pitch; }
  LM_DEVICE int64_t row(int64_t k) const { return first_row + k * step; }
};

/* A thread's walk over planes of one channel, `run` packs each, image_pitch elements apart. */
struct lm_plane_walk {
  int64_t base, image_pitch;
  uint32_t first, step;
  lm_divider run;
  int width; /* elements in a pack */
  LM_DEVICE int64_t at(int64_t k) const {
    uint32_t rest, image = lm_divide_rest(first + (uint32_t)k * step, run, &rest);
    return base + image * image_pitch + (int64_t)rest * width;
  }
  LM_DEVICE int64_t row(int64_t) const { return 0; }
};

/* Sums a thread's packs of V elements: total[v] is the sum of the packs' elements v. A source S loads, and adds an
 * element to the two sums given each channel's `center`; with PIVOTED, distances are from a value of the data itself,
 * so that large means cancel. With STORES it writes each pack's masked gradient. WIDE_FLIGHT: the number of loads in
 * flight of packs of 8 that fit into registers; of single elements twice that. */
template <int V, class S, class Walk>
LM_DEVICE void lm_sum_packs(const S &source, const Walk &walk, int packs, typename S::channel *center,
                            lm_channel_sums *total) {
  typedef lm_compute<typename S::stored> A;
  enum { FLIGHT = V == 1 ? 2 * S::WIDE_FLIGHT : V > 4 ? S::WIDE_FLIGHT : 4 }; /* loads in flight */
  if constexpr (S::PIVOTED) {
    if (packs > 0) {
      auto item = source.template load<V>(walk.at(0), walk.row(0));
      for (int v = 0; v < V; v++) center[v] = source.value(item, v);
    }
  }
  for (int k = 0; k < packs;) {
    int end = packs - k < LM_NORM_CHUNK ? packs : k + LM_NORM_CHUNK;
    double n = (double)(end - k);
    A a[V] = {}, b[V] = {};
    for (; k < end; k += FLIGHT) {
      typename S::template item<V> items[FLIGHT];
      LM_UNROLL
      for (int u = 0; u < FLIGHT; u++)
        if (k + u < end) items[u] = source.template load<V>(walk.at(k + u), walk.row(k + u));
      LM_UNROLL
      for (int u = 0; u < FLIGHT; u++) {
        if (k + u < end) {
          LM_UNROLL
          for (int v = 0; v < V; v++) source.add(items[u], v, center[v], a + v, b + v);
          if constexpr (S::STORES) source.store(items[u], walk.at(k + u));
        }
      }
    }
    k = end;
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      total[v] = typename S::join()(total[v], S::join::chunk(n, center[v], (double)a[v], (double)b[v]));
      if constexpr (S::PIVOTED) center[v] = (A)total[v].a;
    }
  }
}

LM_DEVICE void lm_put_part(double *partial, int64_t part, int64_t c, int64_t channel, lm_channel_sums two) {
  partial[part * 3 * c + channel] = two.n;
  partial[(part * 3 + 1) * c + channel] = two.a;
  partial[(part * 3 + 2) * c + channel] = two.b;
}

/* Joins the parts of channel threadIdx.x % 32 of this block's 32; for blocks of LM_COLUMNS_BLOCK. */
template <class Join>
LM_DEVICE lm_channel_sums lm_join_parts(const double *partial, int parts, int64_t c, int64_t channel,
                                        lm_channel_sums *shared) {
  lm_channel_sums total = {0, 0, 0};
  if (channel < c) {
    for (int64_t p = threadIdx.x / LM_WARP; p < parts; p += blockDim.x / LM_WARP)
      total = Join()(total, lm_channel_sums{partial[p * 3 * c + channel], partial[(p * 3 + 1) * c + channel],
                                            partial[(p * 3 + 2) * c + channel]});
  }
  return lm_columns_reduce(total, Join(), LM_WARP, shared);
}

/* A grid over rows of c columns: `across` threads side by side take a pack each, `down` threads take different rows,
 * both powers of two; block y has a share of the rows. */
typedef struct lm_column_grid {
  int64_t c;
  int across_bits, down_bits;
  lm_shares rows;
} lm_column_grid;

/* Sets this thread's first column and its walk over rows. Returns the number of packs that it visits, below 2^31. */
template <int V>
LM_DEVICE int lm_column_position(const lm_column_grid &grid, int64_t *column, lm_column_walk *walk) {
  int64_t from = lm_share_begin(grid.rows, blockIdx.y), to = lm_share_begin(grid.rows, (int64_t)blockIdx.y + 1);
  int64_t row = from + (threadIdx.x >> grid.across_bits), down = (int64_t)1 << grid.down_bits;
  *column = (((int64_t)blockIdx.x << grid.across_bits) + (threadIdx.x & ((1u << grid.across_bits) - 1))) * V;
  *walk = lm_column_walk{row * grid.c + *column, grid.c << grid.down_bits, row, down};
  return *column < grid.c && row < to ? (int)((to - row + down - 1) >> grid.down_bits) : 0;
}

template <int V, class S>
LM_KERNEL void __launch_bounds__(LM_COLUMNS_BLOCK) lm_columns_sums(S source, lm_column_grid grid, double *partial) {
  __shared__ lm_channel_sums shared[LM_COLUMNS_BLOCK];
  int64_t column;
  lm_column_walk walk;
  int packs = lm_column_position<V>(grid, &column, &walk);
  int across = 1 << grid.across_bits;
  lm_channel_sums total[V] = {};
  typename S::channel center[V] = {};
  if (packs > 0) {
    for (int v = 0; v < V; v++) center[v] = source.center(column + v);
    lm_sum_packs<V>(source, walk, packs, center, total);
  }
  LM_UNROLL
  for (int v = 0; v < V; v++) {
    lm_channel_sums two = lm_columns_reduce(total[v], typename S::join(), across, shared);
    if ((int)threadIdx.x < across && column < grid.c) lm_put_part(partial, blockIdx.y, grid.c, column + v, two);
  }
}

/* ---- launching ---- */

/* Calls f with lm_width<V>, V the elements of a full pack or 1. */
template <class T, class F>
int lm_for_pack(bool in_packs, F f) {
  return in_packs ? f(lm_width<lm_full_pack<T>::V>{}) : f(lm_width<1>{});
}

/* Returns log2 of the threads side by side in a block over rows of c elements, V in a pack. */
static inline int lm_across_bits(int64_t c, int V) {
  int bits = 0;
  while (1 << bits < LM_WARP && (int64_t)V << bits < c) bits++;
  return bits;
}

/* Returns a grid for blocks of `threads` threads, a power of two. */
static inline lm_column_grid lm_column_grid_make(int64_t rows, int64_t c, int V, int threads, int64_t parts) {
  lm_column_grid grid = {c, lm_across_bits(c, V), 0, lm_shares_make(rows, parts)};
  while (threads >> grid.across_bits >> (grid.down_bits + 1)) grid.down_bits++;
  return grid;
}

/* Returns the parts of the rows: about `blocks` blocks run in all, and each thread has at least 4 packs. */
static inline int lm_column_parts(int64_t rows, int64_t c, int V, int threads, int64_t blocks) {
  int across = 1 << lm_across_bits(c, V);
  int64_t tiles = (c + across * V - 1) / (across * V), most = rows / (threads / across * 4);
  int64_t parts = (blocks + tiles - 1) / tiles;
  if (parts > most) parts = most;
  return parts < 1 ? 1 : parts > 65535 ? 65535 : (int)parts;
}

template <int V, class S>
static int lm_launch_columns_sums(const S &source, int64_t rows, int64_t c, int parts, double *partial, void *stream) {
  lm_column_grid over = lm_column_grid_make(rows, c, V, LM_COLUMNS_BLOCK, parts);
  dim3 grid(lm_blocks(c, (int64_t)V << over.across_bits, INT32_MAX), (unsigned)parts);
  return lm_launch(lm_columns_sums<V, S>, grid, LM_COLUMNS_BLOCK, 0, stream, source, over, partial);
}
