/* Finds extremes along one dim and their indices: max_dim, min_dim, argmax, argmin. Of equal elements the first wins,
 * and the first NaN wins over all. */
#include "reduce.cuh"

template <class T>
LM_DEVICE bool lm_is_nan(T v) {
  return v != v;
}

template <class L>
struct lm_reduce_index {
  typedef L load;
  typedef typename L::num num;
  struct state {
    int64_t position; /* index of the element, from 0; INT64_MAX: no element yet */
    num value;
  };
  L loader;
  void *out; /* the extremes, or NULL for their positions alone */
  int64_t *where;
  int dtype;
  bool smallest;
  LM_DEVICE bool better(num a, num b) const { return (lm_is_nan(a) && !lm_is_nan(b)) || (smallest ? a < b : a > b); }
  LM_DEVICE num best(num a, num b) const { return better(b, a) ? b : a; }
  LM_DEVICE num pad() const { return smallest ? lm_reversed(lm_lowest<num>()) : lm_lowest<num>(); }
  LM_DEVICE state start() const { return {INT64_MAX, 0}; }
  /* A thread sees its elements in order, so only a better one replaces the state. */
  template <int K, int V>
  LM_DEVICE void chunk(state &s, num *v, int64_t first, int64_t step, int) const {
    num order[K];
    LM_UNROLL
    for (int k = 0; k < K; k++) order[k] = v[k];
    num value = lm_reduce_tree<K>(order, [this](num a, num b) { return best(a, b); });
    if (s.position != INT64_MAX && !better(value, s.value)) return;
    int at = 0;
    LM_UNROLL
    for (int k = K - 1; k >= 0; k--) {
      if (v[k] == value || lm_is_nan(v[k])) at = k;
    }
    s.value = value;
    s.position = first + at / V * step + at % V;
  }
  LM_DEVICE state operator()(state a, state b) const {
    if (a.position == INT64_MAX) return b;
    if (b.position == INT64_MAX || better(a.value, b.value)) return a;
    return better(b.value, a.value) || b.position < a.position ? b : a;
  }
  LM_DEVICE void put(int64_t at, state s) const {
    if (out) lm_put_number(out, dtype, at, s.value);
    where[at] = s.position + 1;
  }
};

int lm_reduce_indices(const lm_reduce_job *job, void *partial, void *stream) {
  return lm_for_loader(job->x_dtype, [=](auto loader) {
    lm_reduce_index<decltype(loader)> f = {loader, job->out, job->position, job->out_dtype,
                                           job->kind == LM_REDUCE_ARGMIN};
    return lm_reduce_launch(job, f, partial, stream);
  });
}
