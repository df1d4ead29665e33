/* Reduces to numbers: the folders of sum, nansum, prod, mean, var, norm, logsumexp, amax, amin, all and any. */
#include "reduce.cuh"
#include "tensor_chunks.cuh"

/* A destination of results and the last step of their computation. */
typedef struct lm_reduce_target {
  void *out;
  int dtype, finish;
  double count, p, correction;
} lm_reduce_target;

LM_DEVICE double lm_reduce_finished(const lm_reduce_target &to, double v) {
  switch (to.finish) {
    case LM_FINISH_MEAN: return v / to.count;
    case LM_FINISH_VARIANCE: return v / (to.count > to.correction ? to.count - to.correction : 0);
    case LM_FINISH_ALL: return v == to.count;
    default: return v;
  }
}
LM_DEVICE int64_t lm_reduce_finished(const lm_reduce_target &to, int64_t v) {
  return to.finish == LM_FINISH_ALL ? (double)v == to.count : v;
}

template <class L>
struct lm_reduce_sum {
  typedef L load;
  typedef typename L::num num;
  typedef typename L::total state;
  L loader;
  lm_reduce_target to;
  LM_DEVICE num pad() const { return 0; }
  LM_DEVICE state start() const { return 0; }
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int) const {
    s += (state)lm_reduce_tree<K>(v, lm_add_of());
  }
  LM_DEVICE state operator()(state a, state b) const { return a + b; }
  LM_DEVICE void put(int64_t at, state s) const { lm_put_number(to.out, to.dtype, at, lm_reduce_finished(to, s)); }
};

/* Return a^b by a call: the code is too long to be inlined. */
static __device__ __attribute__((noinline)) float lm_power(float a, float b) { return powf(a, b); }
static __device__ __attribute__((noinline)) double lm_power(double a, double b) { return pow(a, b); }

/* The sum of a function of the elements; `kind` selects the function at launch. Of integers only nonzero ones are
 * counted. */
template <class L>
struct lm_reduce_mapped : lm_reduce_sum<L> {
  typedef typename L::num num;
  typedef typename L::total state;
  int kind;
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int) const {
    LM_UNROLL
    for (int k = 0; k < K; k++) {
      if (std::is_integral_v<num> || kind == LM_REDUCE_NONZERO) {
        v[k] = v[k] != 0;
      } else if (kind == LM_REDUCE_SQUARE) {
        v[k] = v[k] * v[k];
      } else if (kind == LM_REDUCE_ABS) {
        v[k] = v[k] < 0 ? -v[k] : v[k];
      } else {
        v[k] = v[k] == v[k] ? v[k] : 0;
      }
    }
    s += (state)lm_reduce_tree<K>(v, lm_add_of());
  }
  LM_DEVICE void put(int64_t at, state s) const {
    state v = lm_reduce_finished(this->to, s);
    if constexpr (std::is_floating_point_v<num>) v = this->to.finish == LM_FINISH_ROOT ? sqrt(v) : v;
    lm_put_number(this->to.out, this->to.dtype, at, v);
  }
};

/* The sum of |x|^p. */
template <class L>
struct lm_reduce_powers : lm_reduce_sum<L> {
  typedef typename L::num num;
  typedef typename L::total state;
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int count) const {
    LM_UNROLL
    for (int k = 0; k < K; k++) v[k] = k < count ? lm_power(v[k] < 0 ? -v[k] : v[k], (num)this->to.p) : 0;
    s += (state)lm_reduce_tree<K>(v, lm_add_of());
  }
  LM_DEVICE void put(int64_t at, state s) const {
    lm_put_number(this->to.out, this->to.dtype, at, lm_power(s, 1 / this->to.p));
  }
};

template <class L>
struct lm_reduce_product : lm_reduce_sum<L> {
  typedef typename L::num num;
  typedef typename L::total state;
  LM_DEVICE num pad() const { return 1; }
  LM_DEVICE state start() const { return 1; }
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int) const {
    state part[K];
    LM_UNROLL
    for (int k = 0; k < K; k++) part[k] = (state)v[k];
    s *= lm_reduce_tree<K>(part, [](state a, state b) { return a * b; });
  }
  LM_DEVICE state operator()(state a, state b) const { return a * b; }
};

template <class L>
struct lm_reduce_extreme {
  typedef L load;
  typedef typename L::num num;
  typedef num state;
  L loader;
  lm_reduce_target to;
  bool smallest, magnitude;
  LM_DEVICE num pad() const { return smallest ? lm_reversed(start()) : magnitude ? 0 : start(); }
  LM_DEVICE state start() const { return lm_lowest<num>(); }
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int) const {
    LM_UNROLL
    for (int k = 0; k < K; k++) {
      if (magnitude && v[k] < 0) v[k] = -v[k];
      if (smallest) v[k] = lm_reversed(v[k]);
    }
    s = lm_max_of()(lm_reduce_tree<K>(v, lm_max_of()), s);
  }
  LM_DEVICE state operator()(state a, state b) const { return lm_max_of()(a, b); }
  LM_DEVICE void put(int64_t at, state s) const { lm_put_number(to.out, to.dtype, at, smallest ? lm_reversed(s) : s); }
};

/* The sum of squared deviations from the mean in one pass: each chunk about its own mean, joined by the formula of
 * Chan, Golub and LeVeque ("Algorithms for Computing the Sample Variance", 1983). A chunk is first shifted by one of
 * its elements, so that a mean far from 0 costs no digits. */
template <class L>
struct lm_reduce_deviation {
  typedef L load;
  typedef typename L::num num;
  struct state {
    double count, mean, squares;
  };
  L loader;
  lm_reduce_target to;
  LM_DEVICE num pad() const { return 0; }
  LM_DEVICE state start() const { return {0, 0, 0}; }
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int count) const {
    num shift = v[0], sum[K];
    LM_UNROLL
    for (int k = 0; k < K; k++) sum[k] = k < count ? v[k] - shift : 0;
    num mean = lm_reduce_tree<K>(sum, lm_add_of()) / count;
    LM_UNROLL
    for (int k = 0; k < K; k++) {
      num away = k < count ? v[k] - shift - mean : 0;
      v[k] = away * away;
    }
    s = (*this)(s, {(double)count, (double)shift + (double)mean, (double)lm_reduce_tree<K>(v, lm_add_of())});
  }
  LM_DEVICE state operator()(state a, state b) const {
    double count = a.count + b.count;
    if (count == 0) return a;
    double apart = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * (a.count * share)};
  }
  LM_DEVICE void put(int64_t at, state s) const {
    lm_put_number(to.out, to.dtype, at, lm_reduce_finished(to, s.squares));
  }
};

/* The largest element m and the sum of e^(x - m). */
template <class L>
struct lm_reduce_logsumexp : lm_softmax_join<typename L::num> {
  typedef L load;
  typedef typename L::num num;
  typedef lm_softmax_total<num> state;
  L loader;
  lm_reduce_target to;
  LM_DEVICE num pad() const { return -INFINITY; }
  LM_DEVICE state start() const { return {0, -INFINITY}; }
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t, int64_t, int) const {
    num order[K];
    LM_UNROLL
    for (int k = 0; k < K; k++) order[k] = v[k];
    num most = lm_reduce_tree<K>(order, lm_max_of());
    LM_UNROLL
    for (int k = 0; k < K; k++) v[k] = this->term(v[k], most);
    s = (*this)(s, {(double)lm_reduce_tree<K>(v, lm_add_of()), most});
  }
  LM_DEVICE void put(int64_t at, state s) const { lm_put_number(to.out, to.dtype, at, log(s.sum) + (double)s.most); }
};

/* ---- choosing a folder */

static lm_reduce_target lm_reduce_target_of(const lm_reduce_job *job) {
  return {job->out, job->out_dtype, job->finish, (double)job->count, job->p, job->correction};
}

/* Launches the job's folder for a loader. */
template <class L>
static int lm_reduce_with(const lm_reduce_job *job, L loader, void *partial, void *stream) {
  lm_reduce_target to = lm_reduce_target_of(job);
  bool least = job->kind == LM_REDUCE_MIN || job->kind == LM_REDUCE_ABS_MIN;
  bool magnitude = job->kind == LM_REDUCE_ABS_MAX || job->kind == LM_REDUCE_ABS_MIN;
  switch (job->kind) {
    case LM_REDUCE_SUM: return lm_reduce_launch(job, lm_reduce_sum<L>{loader, to}, partial, stream);
    case LM_REDUCE_PRODUCT: return lm_reduce_launch(job, lm_reduce_product<L>{{loader, to}}, partial, stream);
    case LM_REDUCE_MAX:
    case LM_REDUCE_MIN:
    case LM_REDUCE_ABS_MAX:
    case LM_REDUCE_ABS_MIN:
      return lm_reduce_launch(job, lm_reduce_extreme<L>{loader, to, least, magnitude}, partial, stream);
    default: break;
  }
  if constexpr (std::is_floating_point_v<typename L::num>) {
    switch (job->kind) {
      case LM_REDUCE_DEVIATION: return lm_reduce_launch(job, lm_reduce_deviation<L>{loader, to}, partial, stream);
      case LM_REDUCE_LOGSUMEXP: return lm_reduce_launch(job, lm_reduce_logsumexp<L>{{}, loader, to}, partial, stream);
      case LM_REDUCE_POWER: return lm_reduce_launch(job, lm_reduce_powers<L>{{loader, to}}, partial, stream);
      default: break;
    }
  }
  return lm_reduce_launch(job, lm_reduce_mapped<L>{{loader, to}, job->kind}, partial, stream);
}

int lm_reduce_run(const lm_reduce_job *job, void *partial, void *stream) {
  return lm_for_loader(job->x_dtype, [=](auto loader) { return lm_reduce_with(job, loader, partial, stream); });
}

/* ---- partial sums of groups */

enum { LM_PARTS_BLOCK = 512 };

template <class X, class Y>
LM_KERNEL void __launch_bounds__(LM_PARTS_BLOCK) lm_group_sum_parts(const lm_parts_table table) {
  __shared__ X shared[LM_PARTS_BLOCK];
  const int i = lm_tensor_of(table), columns = table.columns[i];
  const int c = (int)((blockIdx.x - table.first[i]) * LM_WARP + threadIdx.x % LM_WARP);
  X sum = 0;
  for (int part = (int)threadIdx.x / LM_WARP; part < table.parts[i] && c < columns; part += LM_PARTS_BLOCK / LM_WARP)
    sum += ((const X *)table.from[i])[(int64_t)part * columns + c];
  sum = lm_columns_reduce(sum, lm_add_of(), LM_WARP, shared);
  if (threadIdx.x < LM_WARP && c < columns) ((Y *)table.to[i])[c] = lm_put<Y>(sum);
}

template <class X, class Y>
static int lm_parts_launch(const lm_parts_table *table, void *stream) {
  return lm_launch(lm_group_sum_parts<X, Y>, table->first[table->n], LM_PARTS_BLOCK, 0, stream, *table);
}

int lm_sum_parts(int from_dtype, int to_dtype, const lm_parts_table *table, void *stream) {
  if (from_dtype == LM_I64) return lm_parts_launch<int64_t, lm_stored_I64>(table, stream);
  return lm_for_float(to_dtype, [=](auto y) {
    return from_dtype == LM_F64 ? lm_parts_launch<double, decltype(y)>(table, stream)
                                : lm_parts_launch<float, decltype(y)>(table, stream);
  });
}
