/* Computes batch norm: moments or sums of each channel, then one pass that applies each channel's coefficients.
 * Channels-last tensors are read by columns, each thread keeping the same channels; planes by blocks of one channel. */
#include "norm.cuh"

template <class T>
struct lm_moments_source {
  typedef T stored;
  typedef lm_compute<T> A;
  typedef A channel;
  typedef lm_join_moments join;
  enum { PIVOTED = 1, STORES = 0, WIDE_FLIGHT = 4 };
  template <int V>
  struct item {
    lm_pack<T, V> x;
  };
  const T *x;
  template <int V>
  LM_DEVICE item<V> load(int64_t at, int64_t) const {
    return {lm_load<V>(x + at)};
  }
  template <int V>
  LM_DEVICE A value(const item<V> &in, int v) const {
    return lm_get<A>(in.x.v[v]);
  }
  template <int V>
  LM_DEVICE void add(const item<V> &in, int v, A center, A *a, A *b) const {
    A distance = lm_get<A>(in.x.v[v]) - center;
    *a += distance;
    *b += distance * distance;
  }
  LM_DEVICE A center(int64_t) const { return 0; }
};

template <class T>
struct lm_sums_source {
  typedef T stored;
  typedef lm_compute<T> A;
  typedef A channel;
  typedef lm_join_sums join;
  enum { PIVOTED = 0, STORES = 0, WIDE_FLIGHT = 4 };
  template <int V>
  struct item {
    lm_pack<T, V> g, x;
  };
  const T *g, *x;
  lm_values mean;
  template <int V>
  LM_DEVICE item<V> load(int64_t at, int64_t) const {
    return {lm_load<V>(g + at), lm_load<V>(x + at)};
  }
  template <int V>
  LM_DEVICE void add(const item<V> &in, int v, A center, A *a, A *b) const {
    A g = lm_get<A>(in.g.v[v]);
    *a += g;
    *b += g * (lm_get<A>(in.x.v[v]) - center);
  }
  LM_DEVICE A center(int64_t channel) const { return (A)lm_value_at(mean, channel); }
};

/* The map y = (x - center) * scale + shift. */
template <class A>
struct lm_affine {
  A center, scale, shift;
  LM_DEVICE A operator()(A x) const { return (x - center) * scale + shift; }
};

/* Returns the map of a channel with these statistics. Forward and backward must agree to the bit where relu follows. */
template <class A>
LM_DEVICE lm_affine<A> lm_affine_of(const lm_batch_plan &plan, int64_t channel, double mean, double invstd) {
  A center = (A)mean, scale = (A)(plan.weight.data ? invstd * lm_value_at(plan.weight, channel) : invstd);
  /* The shift makes up for the mean's rounding error, which shows where the mean is large beside the deviation. */
  double lost = mean - (double)center, bias = plan.bias.data ? lm_value_at(plan.bias, channel) : 0;
  return {center, scale, (A)(bias - lost * (double)scale)};
}

/* Returns true if relu's result, as stored in T, is NaN or above 0 and below max; max NaN: no upper limit. */
template <class T>
LM_DEVICE bool lm_relu_passes(lm_compute<T> y, lm_compute<T> max) {
  typedef lm_compute<T> A;
  A stored = lm_get<A>(lm_put<T>(y));
  return !(stored <= 0 || stored >= lm_get<A>(lm_put<T>(max)));
}

/* Returns bit v set where y.v[v] passes. */
template <class T, int V>
LM_DEVICE uint32_t lm_bits_of(const lm_pack<T, V> &y, lm_compute<T> max) {
  uint32_t bits = 0;
  LM_UNROLL
  for (int v = 0; v < V; v++) bits |= (uint32_t)lm_relu_passes<T>(lm_get<lm_compute<T>>(y.v[v]), max) << v;
  return bits;
}

/* Returns the mask bits of V elements: one byte, a byte for each element (shift 0), or for V 1 a bit of a byte. */
template <int V>
LM_DEVICE uint32_t lm_mask_at(const lm_relu_mask &mask, int64_t at) {
  if (V == 1) return (uint32_t)mask.bits[at >> mask.shift] >> ((uint32_t)at & ((1u << mask.shift) - 1)) & 1;
  if (mask.shift > 0) return mask.bits[at >> mask.shift];
  lm_pack<uint8_t, V> each = lm_load<V>(mask.bits + at);
  uint32_t bits = 0;
  LM_UNROLL
  for (int v = 0; v < V; v++) bits |= (uint32_t)each.v[v] << v;
  return bits;
}

template <int V>
LM_DEVICE void lm_put_mask(const lm_relu_mask &mask, int64_t at, uint32_t bits) {
  if (mask.shift > 0) {
    mask.bits[at >> mask.shift] = (uint8_t)bits;
    return;
  }
  lm_pack<uint8_t, V> each;
  LM_UNROLL
  for (int v = 0; v < V; v++) each.v[v] = bits >> v & 1;
  lm_store(mask.bits + at, each);
}

/* Sums g, or g + more with MORE, where relu's result is above 0 and below max: by the mask, by y or, with NORM, by x
 * and the statistics. masked: receives that g, 0 elsewhere; may be NULL with NORM. */
template <class T, bool NORM, bool MORE>
struct lm_masked_sums_source {
  typedef T stored;
  typedef lm_compute<T> A;
  typedef lm_affine<A> channel;
  typedef lm_join_sums join;
  enum { PIVOTED = 0, STORES = 1, WIDE_FLIGHT = MORE ? 1 : 2 }; /* a longer flight would spill registers */
  template <int V>
  struct item {
    lm_pack<T, V> g, more, x;
    uint32_t bits;
  };
  const T *g, *more, *x, *y;
  lm_relu_mask mask;
  T *masked;
  lm_batch_plan plan;
  template <int V>
  LM_DEVICE item<V> load(int64_t at, int64_t) const {
    item<V> in = {lm_load<V>(g + at), {}, lm_load<V>(x + at), {}};
    if (MORE) in.more = lm_load<V>(more + at);
    if (!NORM) in.bits = mask.bits ? lm_mask_at<V>(mask, at) : lm_bits_of(lm_load<V>(y + at), (A)plan.max);
    return in;
  }
  template <int V>
  LM_DEVICE void add(item<V> &in, int v, const channel &k, A *a, A *b) const {
    A x = lm_get<A>(in.x.v[v]);
    if (MORE) in.g.v[v] = lm_put<T>(lm_get<A>(in.g.v[v]) + lm_get<A>(in.more.v[v]));
    if (!(NORM ? lm_relu_passes<T>(k(x), (A)plan.max) : in.bits >> v & 1)) in.g.v[v] = lm_put<T>((A)0);
    A g = lm_get<A>(in.g.v[v]);
    *a += g;
    *b += g * (x - k.center);
  }
  template <int V>
  LM_DEVICE void store(const item<V> &in, int64_t at) const {
    if (!NORM || masked) lm_store(masked + at, in.g);
  }
  LM_DEVICE channel center(int64_t c) const {
    return lm_affine_of<A>(plan, c, lm_value_at(plan.mean, c), lm_value_at(plan.invstd, c));
  }
};

/* A grid over the planes of c channels, `run` elements each, in packs: block k has share k / c of the packs of channel
 * k % c. */
typedef struct lm_plane_grid {
  int64_t c, run;
  lm_divider channels, plane; /* dividers by c, by the packs of a plane */
  lm_long_divider long_plane;
  lm_shares packs; /* shares of a channel's packs */
} lm_plane_grid;

/* Sets the channel and the walk of this thread; returns the number of its packs. */
template <int V>
LM_DEVICE int lm_plane_position(const lm_plane_grid &grid, uint32_t *channel, lm_plane_walk *walk) {
  uint32_t part = lm_divide_rest(blockIdx.x, grid.channels, channel);
  int64_t from = lm_share_begin(grid.packs, part), to = lm_share_begin(grid.packs, (int64_t)part + 1);
  int64_t image = lm_long_divide(from, grid.long_plane), first = from - image * grid.long_plane.divisor;
  *walk = lm_plane_walk{(image * grid.c + *channel) * grid.run,
                        grid.c * grid.run,
                        (uint32_t)first + threadIdx.x,
                        LM_PLANES_BLOCK,
                        grid.plane,
                        V};
  uint32_t size = (uint32_t)(to - from);
  return threadIdx.x < size ? (int)((size - threadIdx.x + LM_PLANES_BLOCK - 1) / LM_PLANES_BLOCK) : 0;
}

template <int V, class S>
LM_KERNEL void lm_planes_sums(S source, lm_plane_grid grid, double *partial) {
  __shared__ lm_channel_sums shared[LM_WARP];
  uint32_t channel;
  lm_plane_walk walk;
  int packs = lm_plane_position<V>(grid, &channel, &walk);
  typename S::channel middle = source.center(channel), center[V];
  lm_channel_sums total[V] = {};
  for (int v = 0; v < V; v++) center[v] = middle;
  lm_sum_packs<V>(source, walk, packs, center, total);
  LM_UNROLL
  for (int v = 1; v < V; v++) total[0] = typename S::join()(total[0], total[v]);
  lm_channel_sums two = lm_block_reduce(total[0], typename S::join(), shared);
  if (threadIdx.x == 0) lm_put_part(partial, lm_divide(blockIdx.x, grid.channels), grid.c, channel, two);
}

/* ---- coefficients ---- */

template <class A>
LM_KERNEL void __launch_bounds__(LM_COLUMNS_BLOCK)
    lm_plan_forward(lm_batch_plan plan, int64_t c, int64_t count, int parts) {
  __shared__ lm_channel_sums shared[LM_COLUMNS_BLOCK];
  int64_t channel = (int64_t)blockIdx.x * LM_WARP + threadIdx.x % LM_WARP;
  lm_channel_sums two = {0, 0, 0};
  if (plan.training) two = lm_join_parts<lm_join_moments>(plan.partial, parts, c, channel, shared);
  if (plan.batches && lm_thread() == 0) ++*plan.batches;
  if (threadIdx.x >= LM_WARP || channel >= c) return;
  double mean = two.a, invstd;
  if (plan.training) {
    invstd = 1 / sqrt(two.b / (double)count + plan.eps);
    if (plan.running_mean.data && count > 0) {
      double old = lm_value_at(plan.running_mean, channel);
      lm_put_value(plan.running_mean, channel, (1 - plan.momentum) * old + plan.momentum * mean);
    }
    if (plan.running_var.data && count > 0) {
      double old = lm_value_at(plan.running_var, channel), var = two.b / (double)(count - 1);
      lm_put_value(plan.running_var, channel, (1 - plan.momentum) * old + plan.momentum * var);
    }
  } else {
    mean = lm_value_at(plan.running_mean, channel);
    invstd = 1 / sqrt(lm_value_at(plan.running_var, channel) + plan.eps);
  }
  if (plan.mean.data) {
    lm_put_value(plan.mean, channel, mean);
    lm_put_value(plan.invstd, channel, invstd);
  }
  /* Backward computes relu's mask again from the statistics as stored, so they are read back here. */
  if (plan.relu) mean = lm_value_at(plan.mean, channel), invstd = lm_value_at(plan.invstd, channel);
  lm_affine<A> k = lm_affine_of<A>(plan, channel, mean, invstd);
  A *coefficients = (A *)plan.coefficients;
  coefficients[channel] = k.center;
  coefficients[c + channel] = k.scale;
  coefficients[2 * c + channel] = k.shift;
}

/* Computes dx's coefficients, dweight and dbias. With h = (x - mean) * invstd over m values: dx = weight * invstd * (g
 * - mean(g) - h * mean(g * h)) for a batch's statistics (Ioffe, Szegedy, 2015), else weight * invstd * g. */
template <class A>
LM_KERNEL void __launch_bounds__(LM_COLUMNS_BLOCK)
    lm_plan_backward(lm_batch_plan plan, int64_t c, int64_t count, int parts) {
  __shared__ lm_channel_sums shared[LM_COLUMNS_BLOCK];
  int64_t channel = (int64_t)blockIdx.x * LM_WARP + threadIdx.x % LM_WARP;
  lm_channel_sums two = lm_join_parts<lm_join_sums>(plan.partial, parts, c, channel, shared);
  if (threadIdx.x >= LM_WARP || channel >= c) return;
  double invstd = plan.invstd.data ? lm_value_at(plan.invstd, channel)
                                   : 1 / sqrt(lm_value_at(plan.running_var, channel) + plan.eps);
  double scale = plan.weight.data ? invstd * lm_value_at(plan.weight, channel) : invstd;
  double mean = plan.training ? lm_value_at(plan.mean, channel) : 0;
  lm_put_value(plan.dweight, channel, two.b * invstd);
  lm_put_value(plan.dbias, channel, two.a);
  A *coefficients = (A *)plan.coefficients;
  coefficients[channel] = (A)mean;
  coefficients[c + channel] = (A)scale;
  coefficients[2 * c + channel] = plan.training ? (A)(-scale * two.a / (double)count) : 0;
  coefficients[3 * c + channel] = plan.training ? (A)(-scale * invstd * invstd * two.b / (double)count) : 0;
  if (plan.relu) coefficients[4 * c + channel] = lm_affine_of<A>(plan, channel, mean, invstd).shift;
}

/* ---- one pass over the elements ---- */

template <class T>
struct lm_apply_map {
  typedef T stored;
  typedef lm_compute<T> A;
  enum { COEFFICIENTS = 3, MASKS = 0 };
  template <int V>
  struct item {
    lm_pack<T, V> x;
  };
  const T *x;
  template <int V>
  LM_DEVICE item<V> load(int64_t at) const {
    return {lm_load<V>(x + at)};
  }
  template <int V>
  LM_DEVICE A value(const item<V> &in, int v, const A *k) const {
    return lm_affine<A>{k[0], k[1], k[2]}(lm_get<A>(in.x.v[v]));
  }
};

template <class T, bool ADD>
struct lm_relu_map {
  typedef T stored;
  typedef lm_compute<T> A;
  enum { COEFFICIENTS = 3, MASKS = ADD };
  template <int V>
  struct item {
    lm_pack<T, V> x, addend;
  };
  const T *x, *addend;
  A max; /* upper limit; NaN: none */
  lm_relu_mask mask;
  template <int V>
  LM_DEVICE item<V> load(int64_t at) const {
    item<V> in = {lm_load<V>(x + at), {}};
    if (ADD) in.addend = lm_load<V>(addend + at);
    return in;
  }
  template <int V>
  LM_DEVICE A value(const item<V> &in, int v, const A *k) const {
    A y = lm_affine<A>{k[0], k[1], k[2]}(lm_get<A>(in.x.v[v]));
    if (ADD) y += lm_get<A>(in.addend.v[v]);
    return y < 0 ? (A)0 : y > max ? max : y;
  }
  template <int V>
  LM_DEVICE void put_mask(int64_t at, const lm_pack<T, V> &y) const {
    if (mask.bits) lm_put_mask<V>(mask, at, lm_bits_of(y, max));
  }
};

/* The map of the gradient. RELU: g counts only where relu of the normalized x is above 0 and below max. */
template <class T, bool RELU>
struct lm_back_map {
  typedef T stored;
  typedef lm_compute<T> A;
  enum { COEFFICIENTS = RELU ? 5 : 4, MASKS = 0 };
  template <int V>
  struct item {
    lm_pack<T, V> g, x;
  };
  const T *g, *x;
  A max; /* upper limit; NaN: none */
  template <int V>
  LM_DEVICE item<V> load(int64_t at) const {
    return {lm_load<V>(g + at), lm_load<V>(x + at)};
  }
  template <int V>
  LM_DEVICE A value(const item<V> &in, int v, const A *k) const {
    A g = lm_get<A>(in.g.v[v]), x = lm_get<A>(in.x.v[v]);
    if constexpr (RELU) g = lm_relu_passes<T>(lm_affine<A>{k[0], k[1], k[4]}(x), max) ? g : (A)0;
    return g * k[1] + ((x - k[0]) * k[3] + k[2]);
  }
};

template <int V, class M, class Walk>
LM_DEVICE void lm_map_packs(const M &map, const Walk &walk, int packs,
                            const lm_compute<typename M::stored> (*k)[M::COEFFICIENTS], typename M::stored *y) {
  enum { FLIGHT = V == 1 ? 8 : 4 }; /* loads in flight */
  for (int i = 0; i < packs; i += FLIGHT) {
    typename M::template item<V> items[FLIGHT];
    LM_UNROLL
    for (int u = 0; u < FLIGHT; u++)
      if (i + u < packs) items[u] = map.template load<V>(walk.at(i + u));
    LM_UNROLL
    for (int u = 0; u < FLIGHT; u++) {
      if (i + u < packs) {
        lm_pack<typename M::stored, V> out;
        LM_UNROLL
        for (int v = 0; v < V; v++) out.v[v] = lm_put<typename M::stored>(map.value(items[u], v, k[v]));
        lm_store(y + walk.at(i + u), out);
        if constexpr (M::MASKS) map.put_mask(walk.at(i + u), out);
      }
    }
  }
}

template <int V, class M>
LM_KERNEL void lm_columns_map(M map, lm_column_grid grid, const lm_compute<typename M::stored> *k,
                              typename M::stored *y) {
  int64_t column;
  lm_column_walk walk;
  int packs = lm_column_position<V>(grid, &column, &walk);
  if (packs == 0) return;
  lm_compute<typename M::stored> own[V][M::COEFFICIENTS];
  LM_UNROLL
  for (int j = 0; j < M::COEFFICIENTS; j++) {
    LM_UNROLL
    for (int v = 0; v < V; v++) own[v][j] = k[j * grid.c + column + v];
  }
  lm_map_packs<V>(map, walk, packs, own, y);
}

template <int V, class M>
LM_KERNEL void lm_planes_map(M map, lm_plane_grid grid, const lm_compute<typename M::stored> *k,
                             typename M::stored *y) {
  uint32_t channel;
  lm_plane_walk walk;
  int packs = lm_plane_position<V>(grid, &channel, &walk);
  lm_compute<typename M::stored> own[V][M::COEFFICIENTS];
  LM_UNROLL
  for (int j = 0; j < M::COEFFICIENTS; j++) {
    lm_compute<typename M::stored> one = k[j * grid.c + channel];
    LM_UNROLL
    for (int v = 0; v < V; v++) own[v][j] = one;
  }
  lm_map_packs<V>(map, walk, packs, own, y);
}

/* A grid of packs over the whole tensor, for planes whose length packs do not divide: a pack may span two planes. */
typedef struct lm_seam_grid {
  int64_t c;
  uint32_t n; /* elements, fewer than 2^31 */
  lm_divider plane, channels;
} lm_seam_grid;

enum { LM_SEAM_BLOCK = 256, LM_SEAM_FLIGHT = 4 };

/* Copies the coefficients of channel plane % c; planes are counted through all images. */
template <class M>
LM_DEVICE void lm_read_coefficients(const lm_seam_grid &grid, uint32_t plane, const lm_compute<typename M::stored> *k,
                                    lm_compute<typename M::stored> *own) {
  uint32_t channel;
  lm_divide_rest(plane, grid.channels, &channel);
  LM_UNROLL
  for (int j = 0; j < M::COEFFICIENTS; j++) own[j] = k[j * grid.c + channel];
}

/* Maps packs that may reach into the next plane; a plane has at least V elements. */
template <int V, class M>
LM_KERNEL void __launch_bounds__(LM_SEAM_BLOCK)
    lm_seams_map(M map, lm_seam_grid grid, const lm_compute<typename M::stored> *k, typename M::stored *y) {
  enum { STEP = LM_SEAM_BLOCK * V };
  uint32_t begin = blockIdx.x * (STEP * LM_SEAM_FLIGHT) + threadIdx.x * V;
  typename M::template item<V> items[LM_SEAM_FLIGHT];
  LM_UNROLL
  for (int u = 0; u < LM_SEAM_FLIGHT; u++)
    if (begin + u * STEP + V <= grid.n) items[u] = map.template load<V>(begin + u * STEP);
  LM_UNROLL
  for (int u = 0; u < LM_SEAM_FLIGHT; u++) {
    uint32_t at = begin + u * STEP, rest;
    if (at + V > grid.n) break;
    lm_compute<typename M::stored> own[M::COEFFICIENTS], next[M::COEFFICIENTS] = {};
    uint32_t plane = lm_divide_rest(at, grid.plane, &rest), left = grid.plane.divisor - rest;
    lm_read_coefficients<M>(grid, plane, k, own);
    if (left < V) lm_read_coefficients<M>(grid, plane + 1, k, next);
    lm_pack<typename M::stored, V> out;
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      lm_compute<typename M::stored> mine[M::COEFFICIENTS]; /* a copy, not a pointer, so that it is in registers */
      LM_UNROLL
      for (int j = 0; j < M::COEFFICIENTS; j++) mine[j] = v < (int)left ? own[j] : next[j];
      out.v[v] = lm_put<typename M::stored>(map.value(items[u], v, mine));
    }
    lm_store(y + at, out);
    if constexpr (M::MASKS) map.put_mask(at, out);
  }
  uint32_t at = grid.n - grid.n % V + threadIdx.x; /* fewer than V are left, one for each thread */
  if (blockIdx.x + 1 < gridDim.x || at >= grid.n) return;
  lm_compute<typename M::stored> own[M::COEFFICIENTS];
  lm_read_coefficients<M>(grid, lm_divide(at, grid.plane), k, own);
  lm_pack<typename M::stored, 1> out = {lm_put<typename M::stored>(map.value(map.template load<1>(at), 0, own))};
  lm_store(y + at, out);
  if constexpr (M::MASKS) map.put_mask(at, out);
}

/* ---- launching ---- */

/* Returns the number of parts of a channel, each of at most 2^30 elements, for 32-bit indices. */
static int plane_parts(const lm_norm_shape *s, int64_t blocks, int64_t least) {
  int64_t parts = (blocks + s->c - 1) / s->c, most = s->count / least, needed = s->count >> 30;
  if (parts > most) parts = most;
  if (parts <= needed) parts = needed + 1;
  int64_t limit = INT32_MAX / s->c;
  return (int)(parts < 1 ? 1 : parts > limit ? limit : parts);
}

static lm_plane_grid plane_grid(const lm_norm_shape *s, int V, int parts) {
  int64_t plane = s->run / V;
  return {s->c,
          s->run,
          lm_divider_make((uint32_t)s->c),
          lm_divider_make((uint32_t)plane),
          lm_long_divider_make(plane),
          lm_shares_make(s->count / V, parts)};
}

/* Returns the number of elements in the widest packs that divide what is contiguous: 16 bytes, 8 of a 16-bit dtype (14
 * x 14), or one element. */
static int pack_width(const lm_norm_shape *s) {
  int64_t together = s->run == 1 ? s->c : s->run;
  int full = s->dtype == LM_F64 ? 2 : s->dtype == LM_F32 ? 4 : 8;
  return together % full == 0 ? full : full == 8 && together % 4 == 0 ? 4 : 1;
}

/* Returns the pack's elements as pack_width, or 1 if a or b is not aligned to 16 bytes. */
static int width_at(const lm_norm_shape *s, const void *a, const void *b) {
  return lm_is_packed(a) && lm_is_packed(b) ? pack_width(s) : 1;
}

/* Calls f with lm_width<V>, V a width that pack_width returns. */
template <class T, class F>
static int for_width(int width, F f) {
  constexpr int FULL = lm_full_pack<T>::V, HALF = FULL == 8 ? 4 : 1;
  if (width == FULL) return f(lm_width<FULL>{});
  return width == HALF ? f(lm_width<HALF>{}) : f(lm_width<1>{});
}

int lm_norm_parts(const lm_norm_shape *s) {
  if (s->run != 1) return plane_parts(s, 8 * (int64_t)s->processors, 4 * LM_PLANES_BLOCK);
  return lm_column_parts(s->count, s->c, pack_width(s), LM_COLUMNS_BLOCK, 2 * (int64_t)s->processors);
}

template <class S>
static int launch_sums(const lm_norm_shape *s, const S &source, int width, double *partial, void *stream) {
  return for_width<typename S::stored>(width, [&](auto pack) {
    constexpr int V = decltype(pack)::value;
    int parts = lm_norm_parts(s);
    if (s->run == 1) return lm_launch_columns_sums<V>(source, s->count, s->c, parts, partial, stream);
    return lm_launch(lm_planes_sums<V, S>, (unsigned)(s->c * parts), LM_PLANES_BLOCK, 0, stream, source,
                     plane_grid(s, V, parts), partial);
  });
}

int lm_batch_moments(const lm_norm_shape *s, const void *x, double *partial, void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    return launch_sums(s, lm_moments_source<T>{(const T *)x}, width_at(s, x, NULL), partial, stream);
  });
}

int lm_batch_sums(const lm_norm_shape *s, const void *g, const void *x, lm_values mean, double *partial, void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    return launch_sums(s, lm_sums_source<T>{(const T *)g, (const T *)x, mean}, width_at(s, g, x), partial, stream);
  });
}

template <bool NORM, bool MORE>
static int masked_sums(const lm_norm_shape *s, const void *g, const void *more, const void *x, const void *y,
                       lm_relu_mask mask, void *masked, const lm_batch_plan *plan, double *partial, void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    bool in_packs = lm_is_packed(y) && lm_is_packed(mask.bits) && lm_is_packed(masked) && lm_is_packed(more);
    int width = in_packs ? width_at(s, g, x) : 1;
    lm_masked_sums_source<T, NORM, MORE> source = {(const T *)g, (const T *)more, (const T *)x, (const T *)y,
                                                   mask,         (T *)masked,     *plan};
    return launch_sums(s, source, width, partial, stream);
  });
}

int lm_batch_masked_sums(const lm_norm_shape *s, const void *g, const void *more, const void *x, const void *y,
                         lm_relu_mask mask, void *masked, const lm_batch_plan *plan, double *partial, void *stream) {
  auto run = y      ? more ? masked_sums<false, true> : masked_sums<false, false>
                  : more ? masked_sums<true, true>
                    : masked_sums<true, false>;
  return run(s, g, more, x, mask.bits ? NULL : y, mask, masked, plan, partial, stream);
}

int lm_batch_plan_forward(const lm_norm_shape *s, const lm_batch_plan *plan, void *stream) {
  return lm_launch(s->dtype == LM_F64 ? lm_plan_forward<double> : lm_plan_forward<float>,
                   lm_blocks(s->c, LM_WARP, INT32_MAX), LM_COLUMNS_BLOCK, 0, stream, *plan, s->c, s->count,
                   lm_norm_parts(s));
}

int lm_batch_plan_backward(const lm_norm_shape *s, const lm_batch_plan *plan, void *stream) {
  return lm_launch(s->dtype == LM_F64 ? lm_plan_backward<double> : lm_plan_backward<float>,
                   lm_blocks(s->c, LM_WARP, INT32_MAX), LM_COLUMNS_BLOCK, 0, stream, *plan, s->c, s->count,
                   lm_norm_parts(s));
}

template <class M>
static int launch_seams(const lm_norm_shape *s, const M &map, const void *coefficients, typename M::stored *y,
                        void *stream) {
  constexpr int V = lm_full_pack<typename M::stored>::V;
  lm_seam_grid grid = {s->c, (uint32_t)(s->count * s->c), lm_divider_make((uint32_t)s->run),
                       lm_divider_make((uint32_t)s->c)};
  return lm_launch(lm_seams_map<V, M>, lm_blocks(grid.n, LM_SEAM_BLOCK * LM_SEAM_FLIGHT * V, INT32_MAX), LM_SEAM_BLOCK,
                   0, stream, map, grid, (const lm_compute<typename M::stored> *)coefficients, y);
}

/* Launches a map over all elements; aligned: all operands are aligned to 16 bytes. */
template <class M>
static int launch_map(const lm_norm_shape *s, const M &map, bool aligned, const void *coefficients,
                      typename M::stored *y, void *stream) {
  typedef lm_compute<typename M::stored> A;
  int width = aligned ? pack_width(s) : 1;
  enum { BLOCK = LM_PLANES_BLOCK, EACH = 16 /* packs of a thread, in large tensors */ };
  if (s->count == 0) return 0;
  /* Packs of half the size that stay within a plane are faster, since they load no coefficients again. */
  if (aligned && width == 1 && s->run >= lm_full_pack<typename M::stored>::V && s->count < (1 << 30) / s->c)
    return launch_seams(s, map, coefficients, y, stream);
  return for_width<typename M::stored>(width, [&](auto pack) {
    constexpr int V = decltype(pack)::value;
    if (s->run == 1) {
      int bits = lm_across_bits(s->c, V);
      dim3 grid(lm_blocks(s->c, (int64_t)V << bits, INT32_MAX), lm_blocks(s->count, (BLOCK >> bits) * EACH, 65535));
      return lm_launch(lm_columns_map<V, M>, grid, BLOCK, 0, stream, map,
                       lm_column_grid_make(s->count, s->c, V, BLOCK, grid.y), (const A *)coefficients, y);
    }
    int parts = plane_parts(s, s->count / V * s->c / (BLOCK * EACH) + 1, V * BLOCK);
    return lm_launch(lm_planes_map<V, M>, (unsigned)(s->c * parts), BLOCK, 0, stream, map, plane_grid(s, V, parts),
                     (const A *)coefficients, y);
  });
}

int lm_batch_apply(const lm_norm_shape *s, const void *x, void *y, const void *coefficients, void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    return launch_map(s, lm_apply_map<T>{(const T *)x}, lm_is_packed(x) && lm_is_packed(y), coefficients, (T *)y,
                      stream);
  });
}

int lm_batch_apply_relu(const lm_norm_shape *s, const void *x, const void *addend, double max, void *y,
                        lm_relu_mask mask, const void *coefficients, void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    const lm_compute<T> most = (lm_compute<T>)max;
    bool aligned = lm_is_packed(x) && lm_is_packed(addend) && lm_is_packed(y);
    if (addend)
      return launch_map(s, lm_relu_map<T, true>{(const T *)x, (const T *)addend, most, mask}, aligned, coefficients,
                        (T *)y, stream);
    return launch_map(s, lm_relu_map<T, false>{(const T *)x, NULL, most, {}}, aligned, coefficients, (T *)y, stream);
  });
}

int lm_batch_back(const lm_norm_shape *s, const void *g, const void *x, void *dx, const lm_batch_plan *plan,
                  void *stream) {
  return lm_for_float(s->dtype, [&](auto element) {
    typedef decltype(element) T;
    bool aligned = lm_is_packed(g) && lm_is_packed(x) && lm_is_packed(dx);
    const T *of = (const T *)g, *by = (const T *)x;
    const lm_compute<T> most = (lm_compute<T>)plan->max;
    if (plan->relu)
      return launch_map(s, lm_back_map<T, true>{of, by, most}, aligned, plan->coefficients, (T *)dx, stream);
    return launch_map(s, lm_back_map<T, false>{of, by, most}, aligned, plan->coefficients, (T *)dx, stream);
  });
}
