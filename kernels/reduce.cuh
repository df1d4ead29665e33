/* Runs every reduction, as templates over a folder F, which has a loader (below), a state, and
 *   state start()                 the state of no elements
 *   num pad()                     the value of elements past the end
 *   void chunk<K, V>(state &, num *v, int64_t first, int64_t step, int count)
 *                                 folds the first `count` of K elements, which it may overwrite; element k is
 *                                 number first + k / V * step + k % V of the reduced dim
 *   state operator()(state, state)  joins two states
 *   void put(int64_t at, state)   writes the result, at the output's element `at`
 * States are at most LM_REDUCE_STATE bytes. Threads fold chunks of some 16 elements in the loader's type and add those
 * to totals in double or int64, so long sums stay accurate; the order depends on the geometry alone. */
#pragma once

#include <math.h>

#include "reduce.h"
#include "vectors.cuh"

/* ---- loaders: one for each class of dtypes. num: type that chunks are folded in; total: type that adds them up */

template <class Stored, class Num, class Total, int K>
struct lm_loader {
  typedef Stored stored;
  typedef Num num;
  typedef Total total;
  enum { CHUNK = K };
  int dtype;
  LM_DEVICE num operator()(stored v) const { return v; }
};
struct lm_load_f32 : lm_loader<float, float, double, 16> {};
struct lm_load_f64 : lm_loader<double, double, double, 8> {};
struct lm_load_i32 : lm_loader<int32_t, int64_t, int64_t, 16> {};
struct lm_load_i64 : lm_loader<int64_t, int64_t, int64_t, 8> {};
struct lm_load_half : lm_loader<uint16_t, float, double, 32> { /* float16 and bfloat16 */
  LM_DEVICE float operator()(uint16_t v) const {
    return dtype == LM_BF16 ? lm_get<float>(lm_bf16{v}) : lm_get<float>(lm_f16{v});
  }
};
struct lm_load_byte : lm_loader<uint8_t, int32_t, int64_t, 32> { /* bool, uint8 and int8 */
  LM_DEVICE int32_t operator()(uint8_t v) const { return dtype == LM_BOOL ? v != 0 : dtype == LM_I8 ? (int8_t)v : v; }
};
struct lm_load_short : lm_loader<uint16_t, int32_t, int64_t, 32> { /* int16 and uint16 */
  LM_DEVICE int32_t operator()(uint16_t v) const { return dtype == LM_I16 ? (int16_t)v : v; }
};

/* Converts a number to the form that a floating loader of `dtype` loads. */
template <class S, class N>
LM_DEVICE S lm_put_loaded(N v, int dtype) {
  if constexpr (sizeof(S) == 2) {
    return dtype == LM_BF16 ? lm_put<lm_bf16>(v).bits : lm_put<lm_f16>(v).bits;
  } else {
    return v;
  }
}

template <class F>
int lm_for_float_loader(int dtype, F f) {
  switch (dtype) {
    case LM_F32: return f(lm_load_f32{{dtype}});
    case LM_F64: return f(lm_load_f64{{dtype}});
    case LM_F16:
    case LM_BF16: return f(lm_load_half{{dtype}});
    default: return (int)cudaErrorInvalidValue;
  }
}
template <class F>
int lm_for_loader(int dtype, F f) { /* for all dtypes */
  switch (dtype) {
    case LM_BOOL:
    case LM_U8:
    case LM_I8: return f(lm_load_byte{{dtype}});
    case LM_I16:
    case LM_U16: return f(lm_load_short{{dtype}});
    case LM_I32: return f(lm_load_i32{{dtype}});
    case LM_I64: return f(lm_load_i64{{dtype}});
    default: return lm_for_float_loader(dtype, f);
  }
}

/* ---- small helpers */

/* Sets v[0] to op over v[0] to v[K - 1], a power of two, as a tree. */
template <int K, class T, class Op>
LM_DEVICE T lm_reduce_tree(T *v, Op op) {
  if constexpr (K > 1) {
    LM_UNROLL
    for (int k = 0; k < K / 2; k++) v[k] = op(v[k], v[k + K / 2]);
    return lm_reduce_tree<K / 2>(v, op);
  } else {
    return v[0];
  }
}

LM_DEVICE float lm_exp(float a) { return expf(a); }
LM_DEVICE double lm_exp(double a) { return exp(a); }

/* The sum and the largest element of a line. */
template <class N>
struct lm_softmax_total {
  double sum; /* sum of e^(x - most); of gradient times y, or of the gradient */
  N most;
};

/* Joins sums of exponentials about different largest elements. Equal infinities differ by 0. */
template <class N>
struct lm_softmax_join {
  LM_DEVICE N term(N v, N most) const { return v == most ? 1 : lm_exp(v - most); }
  LM_DEVICE lm_softmax_total<N> operator()(lm_softmax_total<N> a, lm_softmax_total<N> b) const {
    N most = lm_max_of()(a.most, b.most);
    return {a.sum * (double)term(a.most, most) + b.sum * (double)term(b.most, most), most};
  }
};

/* Reverses the order of values without overflow, so that the smallest becomes the largest. */
template <class T>
LM_DEVICE T lm_reversed(T v) {
  if constexpr (std::is_floating_point_v<T>) {
    return -v;
  } else {
    return ~v;
  }
}

/* Reduces by op over `lanes` neighboring lanes of a warp, a power of two; each gets the result. */
template <class T, class Op>
LM_DEVICE T lm_lanes_reduce(T value, Op op, int lanes) {
  for (int by = lanes / 2; by > 0; by /= 2) value = op(value, lm_shuffle_xor(value, by));
  return value;
}

/* ---- geometry on the device */

template <int SIDES>
struct lm_reduce_axes {
  int ndim; /* at least 1 */
  lm_long_divider by[LM_DIMS_MAX];
  int64_t stride[SIDES][LM_DIMS_MAX];
};

template <int SIDES>
static inline lm_reduce_axes<SIDES> lm_reduce_axes_of(const lm_dims *dims) {
  lm_reduce_axes<SIDES> axes = {};
  axes.ndim = dims->ndim > 0 ? dims->ndim : 1;
  for (int d = 0; d < dims->ndim; d++) {
    axes.by[d] = lm_long_divider_make(dims->size[d]);
    for (int s = 0; s < SIDES; s++) axes.stride[s][d] = dims->stride[s][d];
  }
  return axes;
}

/* Sets the offset of position i on each side. */
template <int SIDES>
LM_DEVICE void lm_reduce_at(const lm_reduce_axes<SIDES> &axes, int64_t i, int64_t *offset) {
  LM_UNROLL
  for (int s = 0; s < SIDES; s++) offset[s] = 0;
  for (int d = axes.ndim - 1; d > 0; d--) {
    int64_t next = lm_long_divide(i, axes.by[d]), position = i - next * axes.by[d].divisor;
    LM_UNROLL
    for (int s = 0; s < SIDES; s++) offset[s] += position * axes.stride[s][d];
    i = next;
  }
  LM_UNROLL
  for (int s = 0; s < SIDES; s++) offset[s] += i * axes.stride[s][0];
}

typedef struct lm_reduce_grid {
  const void *x;
  lm_reduce_axes<2> results;  /* all results; sides: x, out */
  lm_reduce_axes<1> segments; /* rows: the reduced dims except the run; columns: all of them */
  int64_t result_count, segment_count;
  int64_t run, run_step; /* rows: elements of a run, and the distance between them */
  int64_t each, piece, out_step;
  lm_long_divider cuts;
  int lanes, groups, parts;
} lm_reduce_grid;

LM_DEVICE int64_t lm_reduce_segment(const lm_reduce_grid &g, int64_t segment) {
  int64_t offset;
  lm_reduce_at(g.segments, segment, &offset);
  return offset;
}

/* ---- rows: a result's elements are close together */

/* Folds every `lanes`th of n contiguous elements, in packs where they are aligned; the first has index `first`. */
template <class F, class S>
LM_DEVICE void lm_reduce_packs(const F &f, S &state, const typename F::load::stored *x, int n, int64_t first, int lane,
                               int lanes) {
  typedef typename F::load::stored stored;
  enum { V = 16 / sizeof(stored), K = F::load::CHUNK, U = K / V };
  typename F::load::num v[K];
  int head = (int)((0 - (uintptr_t)x) % 16 / sizeof(stored));
  if (head > n) head = n;
  for (int i = lane; i < head; i += lanes) {
    v[0] = f.loader(x[i]);
    f.template chunk<1, 1>(state, v, first + i, 0, 1);
  }
  x += head, n -= head, first += head;
  int packs = n / V;
  for (int i = lane; i < packs; i += U * lanes) {
    lm_words<stored, V> words[U];
    lm_pack<stored, V> pack[U];
    int count = 0;
    LM_UNROLL
    for (int u = 0; u < U; u++) {
      if (i + u * lanes < packs) {
        words[u] = lm_load_words<V>(x + (i + u * lanes) * V);
        count += V;
      }
    }
    LM_UNROLL
    for (int u = 0; u < U; u++) pack[u] = lm_unpack(words[u]);
    LM_UNROLL
    for (int k = 0; k < K; k++) v[k] = k < count ? f.loader(pack[k / V].v[k % V]) : f.pad();
    f.template chunk<K, V>(state, v, first + i * V, (int64_t)lanes * V, count);
  }
  for (int i = packs * V + lane; i < n; i += lanes) {
    v[0] = f.loader(x[i]);
    f.template chunk<1, 1>(state, v, first + i, 0, 1);
  }
}

/* Folds every `lanes`th of n elements that are `step` apart; the first has index `first`. */
template <class F, class S>
LM_DEVICE void lm_reduce_steps(const F &f, S &state, const typename F::load::stored *x, int64_t step, int n,
                               int64_t first, int lane, int lanes) {
  enum { U = 8 };
  for (int i = lane; i < n; i += U * lanes) {
    typename F::load::num v[U];
    int count = 0;
    LM_UNROLL
    for (int u = 0; u < U; u++) {
      bool in = i + u * lanes < n;
      v[u] = in ? f.loader(x[(int64_t)(i + u * lanes) * step]) : f.pad();
      count += in;
    }
    f.template chunk<U, 1>(state, v, first + i, lanes, count);
  }
}

/* Reduces rows. Grid: (results, parts). PACKED: runs are contiguous. */
template <class F, bool PACKED>
LM_KERNEL void __launch_bounds__(LM_REDUCE_BLOCK, 3) lm_reduce_rows(lm_reduce_grid g, F f, typename F::state *partial) {
  typedef typename F::state state_t;
  __shared__ state_t shared[LM_WARP];
  int team = g.lanes * g.groups, member = (int)threadIdx.x & (team - 1);
  int64_t k = (int64_t)blockIdx.x * (LM_REDUCE_BLOCK / team) + threadIdx.x / team;
  int64_t offset[2] = {0, 0};
  state_t state = f.start();
  if (k < g.result_count) {
    lm_reduce_at(g.results, k, offset);
    const typename F::load::stored *x = (const typename F::load::stored *)g.x + offset[0];
    int lane = member & (g.lanes - 1);
    int64_t begin = (int64_t)blockIdx.y * g.each, end = begin + g.each;
    if (end > g.segment_count * g.cuts.divisor) end = g.segment_count * g.cuts.divisor;
    for (int64_t i = begin + member / g.lanes; i < end; i += g.groups) {
      int64_t segment = lm_long_divide(i, g.cuts), first = (i - segment * g.cuts.divisor) * g.piece;
      int n = (int)(g.run - first < g.piece ? g.run - first : g.piece);
      const typename F::load::stored *at = x + lm_reduce_segment(g, segment) + first * g.run_step;
      if (PACKED) {
        lm_reduce_packs(f, state, at, n, first, lane, g.lanes);
      } else {
        lm_reduce_steps(f, state, at, g.run_step, n, first, lane, g.lanes);
      }
    }
  }
  state = team <= LM_WARP ? lm_lanes_reduce(state, f, team) : lm_block_reduce(state, f, shared);
  if (member != 0 || k >= g.result_count) return;
  if (g.parts > 1) {
    partial[blockIdx.y * g.result_count + k] = state;
  } else {
    f.put(offset[1], state);
  }
}

/* ---- columns: neighbors in memory belong to different results */

/* Joins the states of a block's rows of threads; shared [V, rows, lanes]. The first row has the result. */
template <int V, class F>
LM_DEVICE void lm_reduce_join_rows(const F &f, typename F::state *state, typename F::state *shared, int lanes,
                                   int rows) {
  int row = (int)threadIdx.x / lanes, threads = lanes * rows;
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
      LM_UNROLL
      for (int v = 0; v < V; v++) shared[v * threads + threadIdx.x] = state[v];
    }
    __syncthreads();
    if (row < half) {
      LM_UNROLL
      for (int v = 0; v < V; v++) state[v] = f(state[v], shared[v * threads + threadIdx.x + half * lanes]);
    }
  }
}

/* Reduces columns, V neighboring ones in a thread. Grid: (columns, parts). */
template <class F, int V>
LM_KERNEL void __launch_bounds__(LM_REDUCE_BLOCK, 3) lm_reduce_cols(lm_reduce_grid g, F f, typename F::state *partial) {
  typedef typename F::load::stored stored;
  typedef typename F::state state_t;
  enum { U = V * sizeof(stored) == 16 ? 4 : 8 };
  __shared__ state_t shared[V * LM_REDUCE_BLOCK];
  int row = (int)threadIdx.x / g.lanes, rows = (int)blockDim.x / g.lanes;
  int64_t k = ((int64_t)blockIdx.x * g.lanes + (threadIdx.x & (g.lanes - 1))) * V;
  int64_t offset[2] = {0, 0};
  state_t state[V];
  LM_UNROLL
  for (int v = 0; v < V; v++) state[v] = f.start();
  if (k < g.result_count) {
    lm_reduce_at(g.results, k, offset);
    const stored *x = (const stored *)g.x + offset[0];
    int64_t r = (int64_t)blockIdx.y * g.each, end = r + g.each;
    if (end > g.segment_count) end = g.segment_count;
    for (r += row; r < end; r += U * rows) {
      lm_words<stored, V> words[U];
      lm_pack<stored, V> pack[U];
      int count = 0;
      LM_UNROLL
      for (int u = 0; u < U; u++) {
        if (r + u * rows < end) {
          words[u] = lm_load_words<V>(x + lm_reduce_segment(g, r + u * rows));
          count++;
        }
      }
      LM_UNROLL
      for (int u = 0; u < U; u++) pack[u] = lm_unpack(words[u]);
      LM_UNROLL
      for (int v = 0; v < V; v++) {
        typename F::load::num column[U];
        LM_UNROLL
        for (int u = 0; u < U; u++) column[u] = u < count ? f.loader(pack[u].v[v]) : f.pad();
        f.template chunk<U, 1>(state[v], column, r, rows, count);
      }
    }
  }
  lm_reduce_join_rows<V>(f, state, shared, g.lanes, rows);
  if (row != 0 || k >= g.result_count) return;
  LM_UNROLL
  for (int v = 0; v < V; v++) {
    if (g.parts > 1) {
      partial[blockIdx.y * g.result_count + k + v] = state[v];
    } else {
      f.put(offset[1] + v * g.out_step, state[v]);
    }
  }
}

/* ---- the second launch: partial [parts, results] */

template <class F>
LM_KERNEL void lm_reduce_parts(lm_reduce_grid g, F f, const typename F::state *partial) {
  typedef typename F::state state_t;
  __shared__ state_t shared[LM_REDUCE_BLOCK];
  int row = (int)threadIdx.x / g.lanes, rows = (int)blockDim.x / g.lanes;
  int64_t k = (int64_t)blockIdx.x * g.lanes + (threadIdx.x & (g.lanes - 1));
  state_t state = f.start();
  if (k < g.result_count) {
    for (int part = row; part < g.parts; part += rows) state = f(state, partial[part * g.result_count + k]);
  }
  lm_reduce_join_rows<1>(f, &state, shared, g.lanes, rows);
  if (row != 0 || k >= g.result_count) return;
  int64_t offset[2];
  lm_reduce_at(g.results, k, offset);
  f.put(offset[1], state);
}

/* ---- launching */

static inline lm_reduce_grid lm_reduce_grid_of(const lm_reduce_job *job) {
  lm_reduce_grid g = {};
  lm_dims segments = job->reduced;
  g.run = g.run_step = 1;
  if (!job->cols && segments.ndim > 0) {
    int last = --segments.ndim;
    g.run = segments.size[last];
    g.run_step = segments.stride[0][last];
  }
  g.x = job->x;
  g.results = lm_reduce_axes_of<2>(&job->results);
  g.segments = lm_reduce_axes_of<1>(&segments);
  g.result_count = lm_dims_numel(&job->results);
  g.segment_count = lm_dims_numel(&segments);
  g.out_step = job->results.ndim > 0 ? job->results.stride[1][job->results.ndim - 1] : 0;
  g.each = job->each, g.piece = job->piece, g.cuts = lm_long_divider_make(job->cuts);
  g.lanes = job->lanes, g.groups = job->groups, g.parts = job->parts;
  return g;
}

template <class F>
int lm_reduce_launch(const lm_reduce_job *job, F f, void *partial_, void *stream) {
  typedef typename F::state state_t;
  static_assert(sizeof(state_t) <= LM_REDUCE_STATE, "scratch memory is taken by LM_REDUCE_STATE");
  enum { V = sizeof(typename F::load::stored) == 8 ? 2 : 4 };
  lm_reduce_grid g = lm_reduce_grid_of(job);
  state_t *partial = (state_t *)partial_;
  int status;
  if (!job->cols) {
    dim3 grid(lm_blocks(g.result_count, LM_REDUCE_BLOCK / (g.lanes * g.groups), INT32_MAX), (unsigned)g.parts);
    status = g.run_step == 1 ? lm_launch(lm_reduce_rows<F, true>, grid, LM_REDUCE_BLOCK, 0, stream, g, f, partial)
                             : lm_launch(lm_reduce_rows<F, false>, grid, LM_REDUCE_BLOCK, 0, stream, g, f, partial);
  } else {
    dim3 grid(lm_blocks(g.result_count, (int64_t)g.lanes * job->pack, INT32_MAX), (unsigned)g.parts);
    dim3 block((unsigned)(g.lanes * g.groups));
    status = job->pack == V ? lm_launch(lm_reduce_cols<F, V>, grid, block, 0, stream, g, f, partial)
                            : lm_launch(lm_reduce_cols<F, 1>, grid, block, 0, stream, g, f, partial);
  }
  if (status != 0 || g.parts == 1) return status;
  for (g.lanes = 1; g.lanes < LM_WARP && g.lanes < g.result_count;) g.lanes *= 2;
  return lm_launch(lm_reduce_parts<F>, lm_blocks(g.result_count, g.lanes, INT32_MAX), LM_REDUCE_BLOCK, 0, stream, g, f,
                   partial);
}
