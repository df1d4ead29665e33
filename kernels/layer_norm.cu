/* Computes layer norm of rows of d elements. Rows that fit stay in registers as stored, so that memory is read once;
 * longer ones are read once for each pass. A warp takes a row of up to LM_WARP_ROW elements, a block a longer one. */
#include "norm.cuh"

enum { LM_WARP_ROW = 1024, LM_WARPS = 4 /* rows in a block of warps */, LM_ROW_BLOCK = 512 /* a row's max threads */ };
/* Limits registers to the threads that are launched. */
#define LM_ROW_BOUNDS(WARP) __launch_bounds__(WARP ? LM_WARPS *LM_WARP : LM_ROW_BLOCK)

/* A thread's share of a row: packs first, first + step, … of `packs`; the first K stay in registers (K 0: none). */
template <class T, int V, int K>
struct lm_row_part {
  const T *x;
  int64_t packs;
  int first, step;
  lm_pack<T, V> kept[K ? K : 1];

  LM_DEVICE lm_row_part(int64_t d, bool warp)
      : packs(d / V), first(warp ? lm_lane() : (int)threadIdx.x), step(warp ? LM_WARP : (int)blockDim.x) {}
  LM_DEVICE void load(const T *row) {
    x = row;
    LM_UNROLL
    for (int k = 0; k < K; k++) {
      int at = first + k * step;
      if (at < packs) kept[k] = lm_load<V>(x + at * V);
    }
  }
};

/* Calls f(element's index, V values of each row) for each pack of this thread; the rows lie side by side. */
template <class F, class T, int V, int K, class... Others>
LM_DEVICE void lm_each_pack(F f, const lm_row_part<T, V, K> &a, const Others &...others) {
  if constexpr (K > 0) {
    LM_UNROLL
    for (int k = 0; k < K; k++) {
      int at = a.first + k * a.step;
      if (at < a.packs) f((int64_t)at * V, a.kept[k], others.kept[k]...);
    }
  } else {
    for (int64_t at = a.first; at < a.packs; at += a.step)
      f(at * V, lm_load<V>(a.x + at * V), lm_load<V>(others.x + at * V)...);
  }
}

/* Returns w[at] to w[at + V - 1], stored as T or the compute type, in the compute type; `missing` if w has no data. */
template <class T, int V>
LM_DEVICE lm_pack<lm_compute<T>, V> lm_weights(const lm_values &w, int64_t at, lm_compute<T> missing) {
  typedef lm_compute<T> A;
  lm_pack<A, V> out;
  if (!w.data) {
    for (int v = 0; v < V; v++) out.v[v] = missing;
  } else if (sizeof(T) == sizeof(A) || w.dtype == LM_F32) {
    out = lm_load<V>((const A *)w.data + at);
  } else {
    lm_pack<T, V> stored = lm_load<V>((const T *)w.data + at);
    for (int v = 0; v < V; v++) out.v[v] = lm_get<A>(stored.v[v]);
  }
  return out;
}

template <class A>
struct lm_pair {
  A a, b;
};
struct lm_add_pairs {
  template <class A>
  LM_DEVICE lm_pair<A> operator()(lm_pair<A> x, lm_pair<A> y) const {
    return {x.a + y.a, x.b + y.b};
  }
};

template <bool WARP, class A>
LM_DEVICE lm_pair<A> lm_row_sum(lm_pair<A> mine, lm_pair<A> *shared) {
  return WARP ? lm_warp_reduce(mine, lm_add_pairs()) : lm_block_reduce(mine, lm_add_pairs(), shared);
}

/* Normalizes rows. Packs are summed on their own first, so that long rows take fewer steps. */
template <class T, int V, int K, bool WARP>
LM_KERNEL void LM_ROW_BOUNDS(WARP) lm_layer_rows(lm_layer_job job) {
  typedef lm_compute<T> A;
  __shared__ lm_pair<A> shared[LM_WARP];
  int64_t rows_a_block = WARP ? LM_WARPS : 1;
  lm_row_part<T, V, K> x(job.d, WARP);
  A d = (A)job.d, eps = (A)job.eps;
  for (int64_t row = blockIdx.x * rows_a_block + (WARP ? threadIdx.x / LM_WARP : 0); row < job.rows;
       row += gridDim.x * rows_a_block) {
    x.load((const T *)job.x + row * job.d);
    lm_pair<A> sum = {0, 0};
    lm_each_pack(
        [&](int64_t, const lm_pack<T, V> &in) {
          A part = 0;
          LM_UNROLL
          for (int v = 0; v < V; v++) part += lm_get<A>(in.v[v]);
          sum.a += part;
        },
        x);
    A pivot = lm_row_sum<WARP>(sum, shared).a / d;
    sum = {0, 0};
    lm_each_pack(
        [&](int64_t, const lm_pack<T, V> &in) {
          lm_pair<A> part = {0, 0};
          LM_UNROLL
          for (int v = 0; v < V; v++) {
            A distance = lm_get<A>(in.v[v]) - pivot;
            part.a += distance;
            part.b += distance * distance;
          }
          sum = lm_add_pairs()(sum, part);
        },
        x);
    sum = lm_row_sum<WARP>(sum, shared);
    /* The pivot's error corrects both moments; `lost` is the rounding error of the mean. */
    A off = sum.a / d, mean = pivot + off, lost = off - (mean - pivot), squares = sum.b - sum.a * off;
    A rstd = 1 / sqrt((squares < 0 ? 0 : squares) / d + eps);
    if (x.first == 0) {
      lm_put_value(job.mean, row, (double)mean);
      lm_put_value(job.rstd, row, (double)rstd);
    }
    T *y = (T *)job.y + row * job.d;
    lm_each_pack(
        [&](int64_t at, const lm_pack<T, V> &in) {
          lm_pack<A, V> weight = lm_weights<T, V>(job.weight, at, 1), bias = lm_weights<T, V>(job.bias, at, 0);
          lm_pack<T, V> out;
          LM_UNROLL
          for (int v = 0; v < V; v++)
            out.v[v] = lm_put<T>(((lm_get<A>(in.v[v]) - mean) - lost) * rstd * weight.v[v] + bias.v[v]);
          lm_store(y + at, out);
        },
        x);
  }
}

/* Computes dx = rstd * (u - mean(u) - h * mean(u * h)) with h = (x - mean) * rstd and u = g * weight. */
template <class T, int V, int K, bool WARP>
LM_KERNEL void LM_ROW_BOUNDS(WARP) lm_layer_rows_back(lm_layer_job job) {
  typedef lm_compute<T> A;
  __shared__ lm_pair<A> shared[LM_WARP];
  int64_t rows_a_block = WARP ? LM_WARPS : 1;
  lm_row_part<T, V, K> g(job.d, WARP), x(job.d, WARP);
  A d = (A)job.d;
  for (int64_t row = blockIdx.x * rows_a_block + (WARP ? threadIdx.x / LM_WARP : 0); row < job.rows;
       row += gridDim.x * rows_a_block) {
    g.load((const T *)job.g + row * job.d);
    x.load((const T *)job.x + row * job.d);
    A mean = (A)lm_value_at(job.mean, row), rstd = (A)lm_value_at(job.rstd, row);
    lm_pair<A> sum = {0, 0};
    lm_each_pack(
        [&](int64_t at, const lm_pack<T, V> &gs, const lm_pack<T, V> &xs) {
          lm_pack<A, V> weight = lm_weights<T, V>(job.weight, at, 1);
          lm_pair<A> part = {0, 0};
          LM_UNROLL
          for (int v = 0; v < V; v++) {
            A u = lm_get<A>(gs.v[v]) * weight.v[v];
            part.a += u;
            part.b += u * (lm_get<A>(xs.v[v]) - mean);
          }
          sum = lm_add_pairs()(sum, part);
        },
        g, x);
    sum = lm_row_sum<WARP>(sum, shared);
    A mean_u = sum.a / d, mean_uh = sum.b * rstd / d;
    T *dx = (T *)job.y + row * job.d;
    lm_each_pack(
        [&](int64_t at, const lm_pack<T, V> &gs, const lm_pack<T, V> &xs) {
          lm_pack<A, V> weight = lm_weights<T, V>(job.weight, at, 1);
          lm_pack<T, V> out;
          LM_UNROLL
          for (int v = 0; v < V; v++) {
            A h = (lm_get<A>(xs.v[v]) - mean) * rstd;
            out.v[v] = lm_put<T>(rstd * (lm_get<A>(gs.v[v]) * weight.v[v] - mean_u - h * mean_uh));
          }
          lm_store(dx + at, out);
        },
        g, x);
  }
}

/* Sums down the columns: g, and g * h. */
template <class T>
struct lm_layer_source {
  typedef T stored;
  typedef lm_compute<T> A;
  typedef A channel;
  typedef lm_join_sums join;
  enum { PIVOTED = 0, STORES = 0, WIDE_FLIGHT = 2 };
  template <int V>
  struct item {
    lm_pack<T, V> g, x;
    A mean, rstd;
  };
  const T *g, *x;
  lm_values mean, rstd;
  template <int V>
  LM_DEVICE item<V> load(int64_t at, int64_t row) const {
    return {lm_load<V>(g + at), lm_load<V>(x + at), lm_weights<T, 1>(mean, row, 0).v[0],
            lm_weights<T, 1>(rstd, row, 0).v[0]};
  }
  template <int V>
  LM_DEVICE void add(const item<V> &in, int v, A, A *a, A *b) const {
    A g = lm_get<A>(in.g.v[v]);
    *a += g;
    *b += g * ((lm_get<A>(in.x.v[v]) - in.mean) * in.rstd);
  }
  LM_DEVICE A center(int64_t) const { return 0; }
};

LM_KERNEL void __launch_bounds__(LM_COLUMNS_BLOCK)
    lm_layer_finish(const double *partial, int parts, int64_t d, lm_values dweight, lm_values dbias) {
  __shared__ lm_channel_sums shared[LM_COLUMNS_BLOCK];
  int64_t column = (int64_t)blockIdx.x * LM_WARP + threadIdx.x % LM_WARP;
  lm_channel_sums two = lm_join_parts<lm_join_sums>(partial, parts, d, column, shared);
  if (threadIdx.x >= LM_WARP || column >= d) return;
  lm_put_value(dweight, column, two.b);
  lm_put_value(dbias, column, two.a);
}

/* ---- launching ---- */

static bool in_packs(const lm_layer_job *job) {
  int64_t width = job->dtype == LM_F64 ? 2 : job->dtype == LM_F32 ? 4 : 8;
  return job->d % width == 0 && lm_is_packed(job->x) && lm_is_packed(job->g) && lm_is_packed(job->y) &&
         lm_is_packed(job->weight.data) && lm_is_packed(job->bias.data);
}

/* Defines a launcher of the forward or backward kernel; the row's length selects its variant. */
#define LM_LAUNCH_ROWS(kernel, T, V, K, WARP, threads) \
  lm_launch(kernel<T, V, K, WARP>, lm_blocks(job->rows, WARP ? LM_WARPS : 1, INT32_MAX), threads, 0, stream, *job)
#define LM_LAYER_LAUNCHER(name, kernel)                                                                         \
  template <class T>                                                                                            \
  static int name(const lm_layer_job *job, void *stream) {                                                      \
    enum { V = lm_full_pack<T>::V, BLOCK = LM_ROW_BLOCK, KEPT = 4, KEPT_WARP = 8, WARPS = LM_WARPS * LM_WARP }; \
    if (!in_packs(job)) {                                                                                       \
      if (job->d <= LM_WARP_ROW) return LM_LAUNCH_ROWS(kernel, T, 1, 0, true, WARPS);                           \
      return LM_LAUNCH_ROWS(kernel, T, 1, 0, false, BLOCK);                                                     \
    }                                                                                                           \
    int64_t packs = job->d / V;                                                                                 \
    if (packs <= 2 * LM_WARP) return LM_LAUNCH_ROWS(kernel, T, V, 2, true, WARPS);                              \
    if (packs <= KEPT_WARP * LM_WARP) return LM_LAUNCH_ROWS(kernel, T, V, KEPT_WARP, true, WARPS);              \
    if (packs <= KEPT * BLOCK) {                                                                                \
      unsigned threads = lm_blocks(packs, KEPT * LM_WARP, BLOCK) * LM_WARP;                                     \
      return LM_LAUNCH_ROWS(kernel, T, V, KEPT, false, threads);                                                \
    }                                                                                                           \
    return LM_LAUNCH_ROWS(kernel, T, V, 0, false, BLOCK);                                                       \
  }
LM_LAYER_LAUNCHER(launch_rows, lm_layer_rows)
LM_LAYER_LAUNCHER(launch_rows_back, lm_layer_rows_back)

int lm_layer_forward(const lm_layer_job *job, void *stream) {
  return lm_for_float(job->dtype, [&](auto element) { return launch_rows<decltype(element)>(job, stream); });
}

int lm_layer_backward(const lm_layer_job *job, void *stream) {
  return lm_for_float(job->dtype, [&](auto element) { return launch_rows_back<decltype(element)>(job, stream); });
}

/* Returns the parts of columns for the widest pack that d allows, whatever the alignment. */
int lm_layer_parts(const lm_layer_job *job) {
  int width = job->dtype == LM_F64 ? 2 : job->dtype == LM_F32 ? 4 : 8;
  return lm_column_parts(job->rows, job->d, job->d % width == 0 ? width : 1, LM_COLUMNS_BLOCK,
                         2 * (int64_t)job->processors);
}

int lm_layer_param_sums(const lm_layer_job *job, double *partial, void *stream) {
  return lm_for_float(job->dtype, [&](auto element) {
    typedef decltype(element) T;
    lm_layer_source<T> source = {(const T *)job->g, (const T *)job->x, job->mean, job->rstd};
    return lm_for_pack<T>(in_packs(job), [&](auto width) {
      constexpr int V = decltype(width)::value;
      return lm_launch_columns_sums<V>(source, job->rows, job->d, lm_layer_parts(job), partial, stream);
    });
  });
}

int lm_layer_param_grads(const lm_layer_job *job, const double *partial, lm_values dweight, lm_values dbias,
                         void *stream) {
  return lm_launch(lm_layer_finish, lm_blocks(job->d, LM_WARP, INT32_MAX), LM_COLUMNS_BLOCK, 0, stream, partial,
                   lm_layer_parts(job), job->d, dweight, dbias);
}
