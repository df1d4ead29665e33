/* Pools: a thread for each pack of neighboring channels of the result. Gradients are gathered, not scattered: each
 * position sums the windows that contain it, so that every element is written once and always the same. */
#include "pooling.h"

#include "rounded_sums.cuh"
#include "vectors.cuh"

enum { LM_POOLING_BLOCK = 256, LM_POOLING_WIDE = 32 /* least positions of a window that many threads share */ };

/* ---- windows */

struct lm_line {
  lm_pooling_line a;
  lm_divider by_stride;
};

struct lm_window {
  int32_t begin, end, count; /* positions begin, begin + dilation, … below end; count: what a mean divides by */
  int32_t before;            /* positions of the window before begin */
};

/* Returns i * n / d, rounded down. */
LM_DEVICE int32_t lm_share(int32_t i, int32_t n, int32_t d) {
  uint64_t product = (uint64_t)(uint32_t)i * (uint32_t)n;
  if (product >> 32 == 0) return (int32_t)((uint32_t)product / (uint32_t)d);
  return (int32_t)(product / (uint32_t)d);
}
LM_DEVICE int32_t lm_share_up(int32_t i, int32_t n, int32_t d) {
  int32_t down = lm_share(i, n, d);
  return down + ((int64_t)down * d < (int64_t)i * n);
}

LM_DEVICE lm_window lm_window_of(const lm_line &line, int32_t o, bool count_padding) {
  const lm_pooling_line &a = line.a;
  if (a.kernel == 0) {
    int32_t begin = lm_share(o, a.in, a.out), end = lm_share_up(o + 1, a.in, a.out);
    return {begin, end, end - begin, 0};
  }
  int32_t from = o * a.stride - a.padding, end = from + (a.kernel - 1) * a.dilation + 1, begin = from;
  int32_t padded = (end < a.in + a.padding ? end : a.in + a.padding) - from;
  int32_t before = begin < 0 ? (-begin + a.dilation - 1) / a.dilation : 0;
  begin += before * a.dilation;
  if (end > a.in) end = a.in;
  return {begin, end, a.divisor != 0 ? a.divisor : count_padding ? padded : end - begin, before};
}

/* Sets the windows, first to last - 1, that may contain position i. */
LM_DEVICE void lm_windows_with(const lm_line &line, int32_t i, int32_t *first, int32_t *last) {
  const lm_pooling_line &a = line.a;
  if (a.kernel == 0) {
    *first = lm_share(i, a.out, a.in);
    *last = lm_share_up(i + 1, a.out, a.in);
    return;
  }
  int32_t at = i + a.padding, reach = (a.kernel - 1) * a.dilation;
  *first = at > reach ? (int32_t)lm_divide((uint32_t)(at - reach + a.stride - 1), line.by_stride) : 0;
  *last = (int32_t)lm_divide((uint32_t)at, line.by_stride) + 1;
  if (*last > a.out) *last = a.out;
}

/* ---- a thread's pack */

/* Packs of [planes, rows, columns, c], fewer than 2^31. */
struct lm_grid {
  uint32_t packs;
  lm_divider c, columns, rows; /* c: packs of channels */
};

struct lm_spot {
  int32_t channel, x, y; /* channel: that of the pack's first element */
  int64_t plane;
};

template <int V>
LM_DEVICE lm_spot lm_spot_of(const lm_grid &grid, uint32_t i) {
  lm_spot s;
  uint32_t channel, x, y;
  uint32_t rest = lm_divide_rest(i, grid.c, &channel);
  rest = lm_divide_rest(rest, grid.columns, &x);
  s.plane = lm_divide_rest(rest, grid.rows, &y);
  s.channel = (int32_t)channel * V;
  s.x = (int32_t)x;
  s.y = (int32_t)y;
  return s;
}

struct lm_pooling {
  lm_line y, x;
  int32_t c;
  bool count_padding;
  LM_DEVICE int64_t in(int64_t plane, int32_t at_y, int32_t at_x) const {
    return ((plane * y.a.in + at_y) * x.a.in + at_x) * c;
  }
  LM_DEVICE int64_t out(int64_t plane, int32_t at_y, int32_t at_x) const {
    return ((plane * y.a.out + at_y) * x.a.out + at_x) * c;
  }
};

/* Returns the index in the window of its first position in the input. */
LM_DEVICE int32_t lm_first_tap(const lm_pooling &p, const lm_window &wy, const lm_window &wx) {
  return wy.before * p.x.a.kernel + wx.before;
}

/* Calls f(index, V values) for each position of a window, row by row; the index is within the plane, or with `taps`
 * within the window. Loads FLIGHT packs at a time; in place of missing ones it loads the first one again. */
template <int V, class T, class F>
LM_DEVICE void lm_each_index(const lm_pooling &p, const lm_spot &s, lm_window wy, lm_window wx, bool taps, const T *src,
                             F f) {
  enum { FLIGHT = 4 };
  const T *plane = src + p.in(s.plane, 0, 0) + s.channel;
  int32_t x = wx.begin, y = wx.begin < wx.end ? wy.begin : wy.end, first = y * p.x.a.in + x;
  int32_t row = lm_first_tap(p, wy, wx), tap = row;
  while (y < wy.end) {
    lm_pack<T, V> in[FLIGHT];
    int32_t place[FLIGHT];
    bool held[FLIGHT];
    LM_UNROLL
    for (int u = 0; u < FLIGHT; u++) {
      held[u] = y < wy.end;
      int32_t index = held[u] ? y * p.x.a.in + x : first;
      in[u] = lm_load<V>(plane + index * p.c);
      place[u] = taps ? tap : index;
      x += p.x.a.dilation, tap++;
      if (x >= wx.end) x = wx.begin, y += p.y.a.dilation, tap = row += p.x.a.kernel;
    }
    LM_UNROLL
    for (int u = 0; u < FLIGHT; u++) {
      if (held[u]) f(place[u], in[u]);
    }
  }
}

/* ---- largest */

/* The type that values are compared in. */
template <class T>
using lm_ranked = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 8, int32_t, lm_compute<T>>;

/* Computes max pooling. A NaN wins and stays; the first of equals wins. */
template <class T, int V>
LM_KERNEL void lm_pooling_max_kernel(lm_pooling p, lm_grid grid, const T *src, T *dst, int64_t *indices,
                                     uint8_t *taps) {
  typedef lm_ranked<T> A;
  uint32_t i = (uint32_t)lm_thread();
  if (i >= grid.packs) return;
  lm_spot s = lm_spot_of<V>(grid, i);
  lm_window wy = lm_window_of(p.y, s.y, false), wx = lm_window_of(p.x, s.x, false);
  A best[V];
  int32_t at[V];
  LM_UNROLL
  for (int v = 0; v < V; v++)
    best[v] = lm_lowest<A>(), at[v] = taps ? lm_first_tap(p, wy, wx) : wy.begin * p.x.a.in + wx.begin;
  lm_each_index<V>(p, s, wy, wx, taps, src, [&](int32_t place, const lm_pack<T, V> &in) {
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      A value = lm_get<A>(in.v[v]);
      bool take = value > best[v] || value != value;
      best[v] = take ? value : best[v];
      at[v] = take ? place : at[v];
    }
  });
  int64_t to = p.out(s.plane, s.y, s.x) + s.channel;
  lm_pack<T, V> values;
  LM_UNROLL
  for (int v = 0; v < V; v++) values.v[v] = lm_put<T>(best[v]);
  lm_store(dst + to, values);
  if (taps) {
    lm_pack<uint8_t, V> found;
    LM_UNROLL
    for (int v = 0; v < V; v++) found.v[v] = (uint8_t)at[v];
    lm_store(taps + to, found);
  } else if (indices) {
    lm_pack<int64_t, V> found;
    LM_UNROLL
    for (int v = 0; v < V; v++) found.v[v] = (int64_t)at[v] + 1;
    lm_store(indices + to, found);
  }
}

/* Reports an `index` outside the plane, with the element's position in row-major order of [N, C, H, W]. */
LM_DEVICE void lm_fail_bad_index(const lm_pooling &p, lm_bad bad, int kind, int64_t plane, int32_t y, int32_t x,
                                 int32_t channel, int64_t index) {
  int64_t position = ((plane * p.c + channel) * p.y.a.out + y) * p.x.a.out + x + 1;
  lm_report_bad(bad, kind, position, index, (int64_t)p.y.a.in * p.x.a.in);
}

/* Returns the index in window o of position `at`, which it may contain, along one axis; -1: it does not. */
LM_DEVICE int32_t lm_tap_of(const lm_pooling_line &a, int32_t at, int32_t o) {
  int32_t from = at + a.padding - o * a.stride;
  return from % a.dilation == 0 ? from / a.dilation : -1;
}

template <class T, int V>
LM_KERNEL void lm_pooling_max_back_kernel(lm_pooling p, lm_grid grid, const T *src, T *dst, const int64_t *indices,
                                          const uint8_t *taps, lm_bad bad, int bad_kind, int64_t first_plane) {
  typedef lm_compute<T> A;
  uint32_t i = (uint32_t)lm_thread();
  if (i >= grid.packs) return;
  lm_spot s = lm_spot_of<V>(grid, i);
  int64_t mine = (int64_t)s.y * p.x.a.in + s.x + 1, limit = (int64_t)p.y.a.in * p.x.a.in;
  int32_t y0, y1, x0, x1;
  lm_windows_with(p.y, s.y, &y0, &y1);
  lm_windows_with(p.x, s.x, &x0, &x1);
  A sum[V] = {};
  for (int32_t y = y0; y < y1; y++) {
    int32_t down = taps ? lm_tap_of(p.y.a, s.y, y) : 0;
    for (int32_t x = x0; x < x1; x++) {
      int64_t at = p.out(s.plane, y, x) + s.channel;
      lm_pack<T, V> g = lm_load<V>(src + at);
      if (taps) {
        int32_t across = lm_tap_of(p.x.a, s.x, x);
        lm_pack<uint8_t, V> tap = lm_load<V>(taps + at);
        LM_UNROLL
        for (int v = 0; v < V; v++)
          if (down >= 0 && across >= 0 && tap.v[v] == down * p.x.a.kernel + across) sum[v] += lm_get<A>(g.v[v]);
        continue;
      }
      lm_pack<int64_t, V> index = lm_load<V>(indices + at);
      int32_t wrong = -1;
      int64_t wrong_index = 0;
      LM_UNROLL
      for (int v = 0; v < V; v++) {
        if (index.v[v] == mine) sum[v] += lm_get<A>(g.v[v]);
        if ((uint64_t)(index.v[v] - 1) >= (uint64_t)limit) wrong = v, wrong_index = index.v[v];
      }
      if (wrong >= 0) lm_fail_bad_index(p, bad, bad_kind, first_plane + s.plane, y, x, s.channel + wrong, wrong_index);
    }
  }
  lm_pack<T, V> out;
  LM_UNROLL
  for (int v = 0; v < V; v++) out.v[v] = lm_put<T>(sum[v]);
  lm_store(dst + p.in(s.plane, s.y, s.x) + s.channel, out);
}

/* Scatters gradients, a thread for each channel of a plane: in order, so deterministic. sums must be 0. */
template <class T>
LM_KERNEL void lm_pooling_max_scatter_kernel(lm_pooling p, int64_t channels, const T *src, lm_compute<T> *sums,
                                             const int64_t *indices, lm_bad bad, int bad_kind) {
  int64_t limit = (int64_t)p.y.a.in * p.x.a.in;
  for (int64_t i = lm_thread(); i < channels; i += lm_threads()) {
    int64_t plane = i / p.c;
    int32_t channel = (int32_t)(i % p.c);
    lm_compute<T> *sum = sums + p.in(plane, 0, 0) + channel;
    for (int32_t y = 0; y < p.y.a.out; y++) {
      for (int32_t x = 0; x < p.x.a.out; x++) {
        int64_t at = p.out(plane, y, x) + channel, index = indices[at];
        if (index < 1 || index > limit) {
          lm_fail_bad_index(p, bad, bad_kind, plane, y, x, channel, index);
        } else {
          sum[(index - 1) * p.c] += lm_get<lm_compute<T>>(src[at]);
        }
      }
    }
  }
}

/* ---- mean */

template <class T, int V>
LM_KERNEL void lm_pooling_avg_kernel(lm_pooling p, lm_grid grid, const T *src, T *dst) {
  typedef lm_compute<T> A;
  uint32_t i = (uint32_t)lm_thread();
  if (i >= grid.packs) return;
  lm_spot s = lm_spot_of<V>(grid, i);
  lm_window wy = lm_window_of(p.y, s.y, p.count_padding), wx = lm_window_of(p.x, s.x, p.count_padding);
  A sum[V] = {};
  lm_each_index<V>(p, s, wy, wx, false, src, [&](int32_t, const lm_pack<T, V> &in) {
    LM_UNROLL
    for (int v = 0; v < V; v++) sum[v] += lm_get<A>(in.v[v]);
  });
  A count = (A)((int64_t)wy.count * wx.count);
  lm_pack<T, V> out;
  LM_UNROLL
  for (int v = 0; v < V; v++) out.v[v] = lm_put<T>(sum[v] / count);
  lm_store(dst + p.out(s.plane, s.y, s.x) + s.channel, out);
}

/* Averages large windows of planes of one channel, a warp for each. */
template <class T>
LM_KERNEL void lm_pooling_avg_warp(lm_pooling p, lm_grid grid, const T *src, T *dst) {
  typedef lm_compute<T> A;
  uint32_t i = (uint32_t)(lm_thread() / LM_WARP);
  if (i >= grid.packs) return; /* whole warps */
  lm_spot s = lm_spot_of<1>(grid, i);
  lm_window wy = lm_window_of(p.y, s.y, p.count_padding), wx = lm_window_of(p.x, s.x, p.count_padding);
  const T *corner = src + p.in(s.plane, wy.begin, wx.begin);
  uint32_t width = (uint32_t)(wx.end - wx.begin), pitch = (uint32_t)p.x.a.in;
  int64_t positions = (int64_t)(wy.end - wy.begin) * width;
  A sum = 0;
  if (width == pitch) { /* whole rows are contiguous */
    for (int64_t k = lm_lane(); k < positions; k += LM_WARP) sum += lm_get<A>(corner[k]);
  } else {
    for (uint32_t k = (uint32_t)lm_lane(); k < positions; k += LM_WARP)
      sum += lm_get<A>(corner[(int64_t)(k / width) * pitch + k % width]);
  }
  sum = lm_warp_reduce(sum, lm_add_of());
  if (lm_lane() == 0) dst[p.out(s.plane, s.y, s.x)] = lm_put<T>(sum / (A)((int64_t)wy.count * wx.count));
}

/* Averages large windows of interleaved channels: a block for `across` packs of one window's channels, whose rows of
 * threads share the positions. */
template <class T, int V>
LM_KERNEL void lm_pooling_avg_block(lm_pooling p, lm_grid grid, int across, const T *src, T *dst) {
  typedef lm_compute<T> A;
  __shared__ A shared[LM_POOLING_BLOCK];
  int t = (int)threadIdx.x;
  lm_spot s = lm_spot_of<1>(grid, blockIdx.x); /* channel: counted in `across` packs */
  int32_t channel = (s.channel * across + t % across) * V;
  lm_window wy = lm_window_of(p.y, s.y, p.count_padding), wx = lm_window_of(p.x, s.x, p.count_padding);
  int32_t width = wx.end - wx.begin, row = t / across, rows = LM_POOLING_BLOCK / across;
  A sum[V] = {};
  if (channel < p.c) {
    int32_t y = wy.begin + row / width, x = row % width;
    while (y < wy.end) {
      lm_pack<T, V> in = lm_load<V>(src + p.in(s.plane, y, wx.begin + x) + channel);
      LM_UNROLL
      for (int v = 0; v < V; v++) sum[v] += lm_get<A>(in.v[v]);
      for (x += rows; x >= width; x -= width) y++;
    }
  }
  lm_pack<T, V> out;
  A count = (A)((int64_t)wy.count * wx.count);
  LM_UNROLL
  for (int v = 0; v < V; v++) out.v[v] = lm_put<T>(lm_columns_reduce(sum[v], lm_add_of(), across, shared) / count);
  if (t < across && channel < p.c) lm_store(dst + p.out(s.plane, s.y, s.x) + channel, out);
}

template <class T, int V>
LM_KERNEL void lm_pooling_avg_back_kernel(lm_pooling p, lm_grid grid, const T *src, T *dst) {
  typedef lm_compute<T> A;
  uint32_t i = (uint32_t)lm_thread();
  if (i >= grid.packs) return;
  lm_spot s = lm_spot_of<V>(grid, i);
  int32_t y0, y1, x0, x1;
  lm_windows_with(p.y, s.y, &y0, &y1);
  lm_windows_with(p.x, s.x, &x0, &x1);
  A sum[V] = {};
  for (int32_t y = y0; y < y1; y++) {
    int64_t down = lm_window_of(p.y, y, p.count_padding).count;
    for (int32_t x = x0; x < x1; x++) {
      A share = 1 / (A)(down * lm_window_of(p.x, x, p.count_padding).count);
      lm_pack<T, V> g = lm_load<V>(src + p.out(s.plane, y, x) + s.channel);
      LM_UNROLL
      for (int v = 0; v < V; v++) sum[v] += lm_get<A>(g.v[v]) * share;
    }
  }
  lm_pack<T, V> out;
  LM_UNROLL
  for (int v = 0; v < V; v++) out.v[v] = lm_put<T>(sum[v]);
  lm_store(dst + p.in(s.plane, s.y, s.x) + s.channel, out);
}

/* ---- launching */

static lm_line line_with_divider(const lm_pooling_line *a) {
  lm_line line = {*a, lm_divider_make((uint32_t)(a->stride > 0 ? a->stride : 1))};
  return line;
}

static lm_pooling pool_of(const lm_pooling_job *job) {
  lm_pooling p = {line_with_divider(&job->y), line_with_divider(&job->x), job->c, job->count_padding};
  return p;
}

/* Calls launch(grid, first plane) for as many planes at a time as 32-bit indices reach; c: packs of channels in a
 * [rows, columns] plane. */
template <class F>
static int for_planes(const lm_pooling_job *job, int32_t rows, int32_t columns, int32_t c, F launch) {
  int64_t each = (int64_t)rows * columns * c, most = (LM_POOLING_PLANE_MAX - 1) / each;
  int error = 0;
  for (int64_t plane = 0; plane < job->planes && error == 0; plane += most) {
    int64_t planes = job->planes - plane < most ? job->planes - plane : most;
    lm_grid grid = {(uint32_t)(planes * each), lm_divider_make((uint32_t)c), lm_divider_make((uint32_t)columns),
                    lm_divider_make((uint32_t)rows)};
    error = launch(grid, plane);
  }
  return error;
}

/* Calls f with the width of packs of channels: 16 bytes, or 8 of uint8, whose indices take more memory. */
template <class T, class F>
static int for_width(const lm_pooling_job *job, F f) {
  constexpr int V = sizeof(T) == 1 ? 8 : lm_full_pack<T>::V;
  if (job->c % V == 0 && lm_is_packed(job->src) && lm_is_packed(job->dst) && lm_is_packed(job->indices) &&
      lm_is_packed(job->taps))
    return f(lm_width<V>{});
  return f(lm_width<1>{});
}

/* Calls launch(width, grid, first plane, its offsets in elements on the input's and the windows' side) for all planes,
 * with a thread for each pack of their rows and columns. */
template <class T, class F>
static int for_packs(const lm_pooling_job *job, int32_t rows, int32_t columns, F launch) {
  return for_width<T>(job, [&](auto width) {
    return for_planes(job, rows, columns, job->c / decltype(width)::value, [&](lm_grid grid, int64_t plane) {
      int64_t in = plane * job->y.in * job->x.in * job->c, out = plane * job->y.out * job->x.out * job->c;
      return launch(width, grid, plane, in, out);
    });
  });
}

template <class T>
static int launch_max(const lm_pooling_job *job, void *stream) {
  auto launch = [&](auto width, lm_grid grid, int64_t, int64_t in, int64_t out) {
    return lm_launch_each(lm_pooling_max_kernel<T, decltype(width)::value>, grid.packs, LM_POOLING_BLOCK, stream,
                          pool_of(job), grid, (const T *)job->src + in, (T *)job->dst + out,
                          job->indices ? job->indices + out : NULL, job->taps ? job->taps + out : NULL);
  };
  return for_packs<T>(job, job->y.out, job->x.out, launch);
}

int lm_pooling_max(const lm_pooling_job *job, void *stream) {
  return lm_for_number(job->dtype, [&](auto element) { return launch_max<decltype(element)>(job, stream); });
}

int lm_pooling_max_back(const lm_pooling_job *job, void *stream) {
  return lm_for_float(job->dtype, [&](auto element) {
    typedef decltype(element) T;
    auto launch = [&](auto width, lm_grid grid, int64_t plane, int64_t in, int64_t out) {
      return lm_launch_each(lm_pooling_max_back_kernel<T, decltype(width)::value>, grid.packs, LM_POOLING_BLOCK, stream,
                            pool_of(job), grid, (const T *)job->src + out, (T *)job->dst + in,
                            job->indices ? job->indices + out : NULL, job->taps ? job->taps + out : NULL, job->bad,
                            job->bad_kind, plane);
    };
    return for_packs<T>(job, job->y.in, job->x.in, launch);
  });
}

int lm_pooling_max_scatter(const lm_pooling_job *job, float *sums, void *stream) {
  int64_t channels = job->planes * job->c;
  return lm_for_float(job->dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_sum_into<T>(job->dst, sums, channels * job->y.in * job->x.in, stream, [&](lm_compute<T> *sum) {
      return lm_launch_each(lm_pooling_max_scatter_kernel<T>, channels, 64, stream, pool_of(job), channels,
                            (const T *)job->src, sum, job->indices, job->bad, job->bad_kind);
    });
  });
}

/* Returns the approximate number of positions in a window. */
static int64_t positions_of(const lm_pooling_line *a) { return a->kernel ? a->kernel : a->in / (a->out ? a->out : 1); }

template <class T>
static int launch_avg(const lm_pooling_job *job, void *stream) {
  bool wide = positions_of(&job->y) * positions_of(&job->x) >= LM_POOLING_WIDE;
  return for_width<T>(job, [&](auto width) {
    constexpr int V = decltype(width)::value;
    int32_t packs = job->c / V, across = 1;
    while (across < LM_WARP && across < packs) across *= 2;
    int32_t units = wide ? (packs + across - 1) / across : packs; /* blocks' or threads' shares of the channels */
    return for_planes(job, job->y.out, job->x.out, units, [&](lm_grid grid, int64_t plane) {
      const T *src = (const T *)job->src + plane * job->y.in * job->x.in * job->c;
      T *dst = (T *)job->dst + plane * job->y.out * job->x.out * job->c;
      if (!wide)
        return lm_launch_each(lm_pooling_avg_kernel<T, V>, grid.packs, LM_POOLING_BLOCK, stream, pool_of(job), grid,
                              src, dst);
      if (job->c == 1)
        return lm_launch(lm_pooling_avg_warp<T>, lm_blocks(grid.packs, LM_POOLING_BLOCK / LM_WARP, INT32_MAX),
                         LM_POOLING_BLOCK, 0, stream, pool_of(job), grid, src, dst);
      return lm_launch(lm_pooling_avg_block<T, V>, grid.packs, LM_POOLING_BLOCK, 0, stream, pool_of(job), grid, across,
                       src, dst);
    });
  });
}

int lm_pooling_avg(const lm_pooling_job *job, void *stream) {
  if (job->y.out == 0 || job->x.out == 0) return 0;
  if (job->dtype == LM_I64) return launch_avg<int64_t>(job, stream);
  return lm_for_float(job->dtype, [&](auto element) { return launch_avg<decltype(element)>(job, stream); });
}

int lm_pooling_avg_back(const lm_pooling_job *job, void *stream) {
  return lm_for_float(job->dtype, [&](auto element) {
    typedef decltype(element) T;
    auto launch = [&](auto width, lm_grid grid, int64_t, int64_t in, int64_t out) {
      return lm_launch_each(lm_pooling_avg_back_kernel<T, decltype(width)::value>, grid.packs, LM_POOLING_BLOCK, stream,
                            pool_of(job), grid, (const T *)job->src + out, (T *)job->dst + in);
    };
    return for_packs<T>(job, job->y.in, job->x.in, launch);
  });
}
