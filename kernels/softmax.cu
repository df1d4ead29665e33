/* Computes softmax. A line that its threads can hold in registers is read once; a longer one is read to sum it up, with
 * the largest element so far taken out of the exponents, and again to write the result. */
#include "softmax.h"

#include "softmax.cuh"

/* A job with its lines as loops, as the kernels take it. */
struct lm_softmax_grid : lm_softmax_job {
  lm_reduce_axes<LM_SOFTMAX_SIDES> axes; /* loops over the lines */
};

/* Convert a stored element to its compute type. */
LM_DEVICE float lm_softmax_get(float v, int) { return v; }
LM_DEVICE double lm_softmax_get(double v, int) { return v; }
LM_DEVICE float lm_softmax_get(uint16_t v, int dtype) { return lm_load_half{{dtype}}(v); }

/* Arithmetic of one softmax kind for one loader. Team's T operator()(T value, Op op) reduces a value over the threads
 * of a line; each of them gets the result. */
template <class L, int KIND>
struct lm_softmax_math {
  typedef typename L::stored stored;
  typedef typename L::num num;
  typedef lm_softmax_total<num> total;
  enum { BACKWARD = KIND == LM_SOFTMAX_BACKWARD || KIND == LM_LOG_SOFTMAX_BACKWARD };

  /* Returns the total over a line whose threads hold K elements each, padded with -infinity, or with 0 in gradients.
   * For softmax the elements become e^(x - most). */
  template <int K, class Team>
  static LM_DEVICE total of_held(num *x, const num *y, Team team) {
    enum { LANES = 4 };
    total t = {0, 0};
    num sum[LANES] = {};
    if constexpr (BACKWARD) {
      LM_UNROLL
      for (int k = 0; k < K; k++) sum[k % LANES] += KIND == LM_SOFTMAX_BACKWARD ? x[k] * y[k] : x[k];
    } else {
      num most[LANES] = {x[0], x[1], x[2], x[3]};
      LM_UNROLL
      for (int k = LANES; k < K; k++) most[k % LANES] = lm_max_of()(most[k % LANES], x[k]);
      t.most = team(lm_reduce_tree<LANES>(most, lm_max_of()), lm_max_of());
      LM_UNROLL
      for (int k = 0; k < K; k++) {
        num power = lm_exp(x[k] - t.most);
        if (KIND == LM_SOFTMAX) x[k] = power;
        sum[k % LANES] += power;
      }
    }
    t.sum = team((double)lm_reduce_tree<LANES>(sum, lm_add_of()), lm_add_of());
    return t;
  }

  /* Adds K more elements to a thread's total. */
  template <int K>
  static LM_DEVICE void more(total *t, const num *x, const num *y) {
    num part[K];
    if constexpr (BACKWARD) {
      LM_UNROLL
      for (int k = 0; k < K; k++) part[k] = KIND == LM_SOFTMAX_BACKWARD ? x[k] * y[k] : x[k];
      t->sum += (double)lm_reduce_tree<K>(part, lm_add_of());
    } else {
      lm_softmax_join<num> join;
      LM_UNROLL
      for (int k = 0; k < K; k++) part[k] = x[k];
      num most = lm_reduce_tree<K>(part, lm_max_of());
      LM_UNROLL
      for (int k = 0; k < K; k++) part[k] = join.term(x[k], most);
      *t = join(*t, {(double)lm_reduce_tree<K>(part, lm_add_of()), most});
    }
  }

  template <class Team>
  static LM_DEVICE total of_all(total t, Team team) {
    if constexpr (BACKWARD) {
      t.sum = team(t.sum, lm_add_of());
    } else {
      t = team(t, lm_softmax_join<num>());
      if (isinf(t.most)) t.sum = NAN; /* infinity - infinity is NaN, as in of_held */
    }
    return t;
  }

  /* Returns the number of a line by which each of its results is computed. */
  static LM_DEVICE num common(const total &t) {
    if constexpr (KIND == LM_SOFTMAX) return (num)(1 / t.sum);
    if constexpr (KIND == LM_LOG_SOFTMAX) return (num)log(t.sum);
    return (num)t.sum;
  }

  /* Returns the result for x (y: softmax's result, in gradients). power: true if x is e^(x - most) already. */
  static LM_DEVICE num result(num x, num y, num most, num c, bool power) {
    if constexpr (KIND == LM_SOFTMAX) return (power ? x : lm_exp(x - most)) * c;
    if constexpr (KIND == LM_LOG_SOFTMAX) return x - most - c;
    if constexpr (KIND == LM_SOFTMAX_BACKWARD) return (x - c) * y;
    if constexpr (KIND == LM_LOG_SOFTMAX_BACKWARD) return x - lm_exp(y) * c;
  }
};

/* ---- rows */

template <class L, int KIND, bool PACKED>
LM_KERNEL void __launch_bounds__(LM_SOFTMAX_MAX_BLOCK, 1) lm_softmax_rows(lm_softmax_grid g, L loader) {
  typedef lm_softmax_math<L, KIND> math;
  typedef typename L::stored stored;
  typedef typename L::num num;
  enum {
    V = PACKED ? 16 / (int)sizeof(stored) : 1,
    HELD = (PACKED ? LM_SOFTMAX_ROW : LM_SOFTMAX_LOOSE_ROW) / (int)sizeof(num),
    P = HELD / V
  };
  __shared__ lm_softmax_total<double> shared[LM_WARP];
  lm_softmax_row_team team = {g.lanes, shared};
  int lane = (int)threadIdx.x & (g.lanes - 1);
  int64_t line = (int64_t)blockIdx.x * ((int)blockDim.x / g.lanes) + (int)threadIdx.x / g.lanes;
  bool active = line < g.count;
  int64_t at[LM_SOFTMAX_SIDES];
  lm_reduce_at(g.axes, active ? line : 0, at);
  stored *out = (stored *)g.out + at[LM_SOFTMAX_OUT];
  const stored *xs = (const stored *)g.x + at[LM_SOFTMAX_X], *ys = (const stored *)g.y + at[LM_SOFTMAX_Y];
  int64_t out_step = PACKED ? 1 : g.step[LM_SOFTMAX_OUT], x_step = PACKED ? 1 : g.step[LM_SOFTMAX_X];
  int64_t y_step = PACKED ? 1 : g.step[LM_SOFTMAX_Y], stride = (int64_t)g.lanes * V;
  num x[HELD], y[math::BACKWARD ? HELD : 1];
  if (g.length <= (int64_t)g.lanes * HELD) {
    lm_words<stored, V> wx[P], wy[math::BACKWARD ? P : 1];
    LM_UNROLL
    for (int p = 0; p < P; p++) {
      int64_t i = lane * V + p * stride;
      bool in = active && i < g.length;
      if (in) wx[p] = lm_load_words<V>(xs + i * x_step);
      if constexpr (math::BACKWARD) {
        if (in) wy[p] = lm_load_words<V>(ys + i * y_step);
      }
    }
    LM_UNROLL
    for (int p = 0; p < P; p++) {
      bool in = active && lane * V + p * stride < g.length;
      lm_pack<stored, V> px = lm_unpack(wx[p]), py = lm_unpack(wy[math::BACKWARD ? p : 0]);
      LM_UNROLL
      for (int v = 0; v < V; v++) {
        x[p * V + v] = in ? (num)loader(px.v[v]) : math::BACKWARD ? 0 : -INFINITY;
        if constexpr (math::BACKWARD) y[p * V + v] = in ? loader(py.v[v]) : 0;
      }
    }
    lm_softmax_total<num> t = math::template of_held<HELD>(x, y, team);
    num c = math::common(t);
    LM_UNROLL
    for (int p = 0; p < P; p++) {
      int64_t i = lane * V + p * stride;
      if (!active || i >= g.length) break;
      lm_pack<stored, V> pack;
      LM_UNROLL
      for (int v = 0; v < V; v++) {
        int k = p * V + v;
        pack.v[v] = lm_put_loaded<stored>(math::result(x[k], y[math::BACKWARD ? k : 0], t.most, c, true), loader.dtype);
      }
      lm_store<V>(out + i * out_step, pack);
    }
    return;
  }
  /* Only whole blocks reach this, since a block takes a longer line alone. */
  lm_softmax_long<L, math::BACKWARD> whole(xs, ys, out, x_step, y_step, out_step, g.length);
  lm_softmax_total<num> t = {0, -INFINITY};
  whole.each(lane, g.lanes, [&](int64_t, const auto &px, const auto &py) {
    enum { N = sizeof px / sizeof(stored) };
    LM_UNROLL
    for (int v = 0; v < N; v++) {
      x[v] = loader(px.v[v]);
      if constexpr (math::BACKWARD) y[v] = loader(py.v[v]);
    }
    math::template more<N>(&t, x, y);
  });
  t = math::of_all(t, team);
  num c = math::common(t);
  whole.each(lane, g.lanes, [&](int64_t i, const auto &px, const auto &py) {
    enum { N = sizeof px / sizeof(stored) };
    lm_pack<stored, N> pack;
    LM_UNROLL
    for (int v = 0; v < N; v++) {
      num below = math::BACKWARD ? loader(py.v[v]) : 0;
      pack.v[v] = lm_put_loaded<stored>(math::result(loader(px.v[v]), below, t.most, c, false), loader.dtype);
    }
    lm_store<N>(out + i * out_step, pack);
  });
}

/* ---- columns */

/* The threads of a block that share a column: every `lanes`th. */
struct lm_softmax_col_team {
  int lanes;
  void *shared; /* room for a block of totals */
  template <class T, class Op>
  LM_DEVICE T operator()(T value, Op op) const {
    return lm_columns_reduce(value, op, lanes, (T *)shared);
  }
};

template <class L, int KIND>
LM_KERNEL void __launch_bounds__(LM_SOFTMAX_MAX_BLOCK, 1) lm_softmax_cols(lm_softmax_grid g, L loader) {
  typedef lm_softmax_math<L, KIND> math;
  typedef typename L::stored stored;
  typedef typename L::num num;
  enum { HELD = LM_SOFTMAX_COL / (int)sizeof(num) };
  __shared__ lm_softmax_total<num> shared[LM_SOFTMAX_MAX_BLOCK];
  lm_softmax_col_team team = {g.lanes, shared};
  int row = (int)threadIdx.x / g.lanes, rows = (int)blockDim.x / g.lanes;
  int64_t line = (int64_t)blockIdx.x * g.lanes + (threadIdx.x & (g.lanes - 1));
  bool active = line < g.count;
  int64_t at[LM_SOFTMAX_SIDES], length = active ? g.length : 0;
  lm_reduce_at(g.axes, active ? line : 0, at);
  stored *out = (stored *)g.out + at[LM_SOFTMAX_OUT];
  const stored *xs = (const stored *)g.x + at[LM_SOFTMAX_X], *ys = (const stored *)g.y + at[LM_SOFTMAX_Y];
  int64_t out_step = g.step[LM_SOFTMAX_OUT], x_step = g.step[LM_SOFTMAX_X], y_step = g.step[LM_SOFTMAX_Y];
  num x[HELD], y[HELD] = {};
  bool held = g.length <= (int64_t)rows * HELD;
  lm_softmax_total<num> t = {0, -INFINITY};
  for (int64_t first = row; held ? first == row : first < length; first += (int64_t)rows * HELD) {
    LM_UNROLL
    for (int k = 0; k < HELD; k++) {
      int64_t i = first + (int64_t)k * rows;
      bool in = i < length;
      x[k] = in ? (num)loader(xs[i * x_step]) : math::BACKWARD ? 0 : -INFINITY;
      if (math::BACKWARD) y[k] = in ? loader(ys[i * y_step]) : 0;
    }
    if (!held) math::template more<HELD>(&t, x, y);
  }
  t = held ? math::template of_held<HELD>(x, y, team) : math::of_all(t, team);
  num c = math::common(t);
  for (int64_t first = row; first < length; first += (int64_t)rows * HELD) {
    LM_UNROLL
    for (int k = 0; k < HELD; k++) {
      int64_t i = first + (int64_t)k * rows;
      if (i >= length) break;
      num a = held ? x[k] : loader(xs[i * x_step]), b = 0;
      if (math::BACKWARD) b = held ? y[k] : loader(ys[i * y_step]);
      out[i * out_step] = lm_put_loaded<stored>(math::result(a, b, t.most, c, held), loader.dtype);
    }
  }
}

/* ---- launching */

template <class L, int KIND>
static int lm_softmax_launch(const lm_softmax_job *job, L loader, void *stream) {
  lm_softmax_grid g = {*job, lm_reduce_axes_of<LM_SOFTMAX_SIDES>(&job->lines)};
  int each = job->cols ? job->lanes : job->threads / job->lanes;
  dim3 grid(lm_blocks(job->count, each, INT32_MAX)), block((unsigned)job->threads);
  if (job->cols) return lm_launch(lm_softmax_cols<L, KIND>, grid, block, 0, stream, g, loader);
  if (job->in_packs) return lm_launch(lm_softmax_rows<L, KIND, true>, grid, block, 0, stream, g, loader);
  return lm_launch(lm_softmax_rows<L, KIND, false>, grid, block, 0, stream, g, loader);
}

int lm_softmax_run(const lm_softmax_job *job, void *stream) {
  return lm_for_float_loader(job->dtype, [=](auto loader) {
    typedef decltype(loader) L;
    switch (job->kind) {
      case LM_SOFTMAX: return lm_softmax_launch<L, LM_SOFTMAX>(job, loader, stream);
      case LM_LOG_SOFTMAX: return lm_softmax_launch<L, LM_LOG_SOFTMAX>(job, loader, stream);
      case LM_SOFTMAX_BACKWARD: return lm_softmax_launch<L, LM_SOFTMAX_BACKWARD>(job, loader, stream);
      default: return lm_softmax_launch<L, LM_LOG_SOFTMAX_BACKWARD>(job, loader, stream);
    }
  });
}
