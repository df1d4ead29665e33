/* Optimizer steps and norms: a block a chunk of one of the tensors in the table. */
#include "optim.h"

#include "optim_update.h"
#include "pack.cuh"

enum { LM_OPTIM_BLOCK = 256 };

static_assert(sizeof(lm_optim_table) + sizeof(lm_adam_step) <= 4096, "kernel arguments have room for 4 KB");
static_assert(sizeof(lm_norm_table) + sizeof(double) * 2 <= 4096, "kernel arguments have room for 4 KB");

/* The tensor that has this chunk. */
LM_DEVICE int lm_tensor_with(const uint32_t *first, int n, uint32_t chunk) {
  int low = 0, high = n - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (first[middle] <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* ---- what updates an element: coefficients, made once a thread, and up to four numbers a parameter */

struct lm_sgd_element {
  enum { STATES = 1 };
  typedef lm_sgd_step step;
  template <class A>
  struct coefficients;
};
template <>
struct lm_sgd_element::coefficients<float> : lm_sgd_f32 {};
template <>
struct lm_sgd_element::coefficients<double> : lm_sgd_f64 {};

template <class A>
LM_DEVICE void lm_prepare(const lm_sgd_step &s, lm_sgd_element::coefficients<A> *c) {
  c->sign = (A)s.sign;
  c->lr = (A)s.lr;
  c->weight_decay = (A)s.weight_decay;
  c->momentum = (A)s.momentum;
  c->fresh = (A)(1 - s.dampening);
}
LM_DEVICE void lm_update(const lm_sgd_step &s, const lm_sgd_f32 &c, float g, float *v) {
  lm_sgd_update_f32(&c, s.weight_decay != 0, s.mode, g, v, v + 1);
}
LM_DEVICE void lm_update(const lm_sgd_step &s, const lm_sgd_f64 &c, double g, double *v) {
  lm_sgd_update_f64(&c, s.weight_decay != 0, s.mode, g, v, v + 1);
}

struct lm_adam_element {
  typedef lm_adam_step step;
  template <class A>
  struct coefficients;
};
template <>
struct lm_adam_element::coefficients<float> : lm_adam_f32 {};
template <>
struct lm_adam_element::coefficients<double> : lm_adam_f64 {};

template <class A>
LM_DEVICE void lm_prepare(const lm_adam_step &s, lm_adam_element::coefficients<A> *c) {
  c->sign = (A)s.sign;
  c->weight_decay = (A)s.weight_decay;
  c->shrink = (A)(1 - s.lr * s.weight_decay);
  c->fresh1 = (A)(1 - s.beta1);
  c->beta2 = (A)s.beta2;
  c->fresh2 = (A)(1 - s.beta2);
  c->eps = (A)s.eps;
  c->step_size = (A)(s.corrections ? s.corrections[0] : s.step_size);
  c->inverse_correction2 = (A)(s.corrections ? s.corrections[1] : s.inverse_correction2);
}
LM_DEVICE void lm_update(const lm_adam_step &s, const lm_adam_f32 &c, float g, float *v) {
  lm_adam_update_f32(&c, s.decay, s.amsgrad, g, v, v + 1, v + 2, v + 3);
}
LM_DEVICE void lm_update(const lm_adam_step &s, const lm_adam_f64 &c, double g, double *v) {
  lm_adam_update_f64(&c, s.decay, s.amsgrad, g, v, v + 1, v + 2, v + 3);
}

/* n elements of tensor i from `from` on, V at a time; STATES state tensors. */
template <class E, class T, int V, int STATES>
LM_DEVICE void lm_update_chunk(const lm_optim_table &table, const typename E::step &step,
                               const typename E::template coefficients<lm_compute<T>> &c, int i, int64_t from, int n) {
  typedef lm_compute<T> A;
  const T *grad = (const T *)table.grad[i] + from;
  T *stored[4] = {(T *)table.param[i], (T *)table.state0[i], (T *)table.state1[i], (T *)table.state2[i]};
  for (int at = (int)threadIdx.x * V; at < n; at += LM_OPTIM_BLOCK * V) {
    lm_pack<T, V> g = lm_load<V>(grad + at), value[1 + STATES];
    LM_UNROLL
    for (int k = 0; k <= STATES; k++) value[k] = lm_load<V>(stored[k] + from + at);
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      A own[4] = {};
      LM_UNROLL
      for (int k = 0; k <= STATES; k++) own[k] = lm_get<A>(value[k].v[v]);
      lm_update(step, c, lm_get<A>(g.v[v]), own);
      LM_UNROLL
      for (int k = 0; k <= STATES; k++) value[k].v[v] = lm_put<T>(own[k]);
    }
    LM_UNROLL
    for (int k = 0; k <= STATES; k++) lm_store(stored[k] + from + at, value[k]);
  }
}

template <class E, class T, int STATES>
LM_KERNEL void __launch_bounds__(LM_OPTIM_BLOCK)
    lm_optim_kernel(const lm_optim_table table, const typename E::step step) {
  typename E::template coefficients<lm_compute<T>> c;
  lm_prepare(step, &c);
  int i = lm_tensor_with(table.first, table.n, blockIdx.x);
  int64_t from = (int64_t)(blockIdx.x - table.first[i]) * LM_OPTIM_CHUNK, rest = table.numel[i] - from;
  int n = rest < LM_OPTIM_CHUNK ? (int)rest : LM_OPTIM_CHUNK;
  uintptr_t address = (uintptr_t)table.param[i] | (uintptr_t)table.grad[i];
  if (STATES > 0) address |= (uintptr_t)table.state0[i];
  if (STATES > 1) address |= (uintptr_t)table.state1[i];
  if (STATES > 2) address |= (uintptr_t)table.state2[i];
  constexpr int V = lm_full_pack<T>::V;
  int whole = address % 16 == 0 ? n / V * V : 0;
  lm_update_chunk<E, T, V, STATES>(table, step, c, i, from, whole);
  lm_update_chunk<E, T, 1, STATES>(table, step, c, i, from + whole, n - whole);
}

template <class E, int STATES>
static int launch(int dtype, const lm_optim_table *table, const typename E::step *step, void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_launch(lm_optim_kernel<E, T, STATES>, table->first[table->n], LM_OPTIM_BLOCK, 0, stream, *table, *step);
  });
}

int lm_optim_sgd(int dtype, const lm_optim_table *table, const lm_sgd_step *step, void *stream) {
  return step->mode == LM_SGD_PLAIN ? launch<lm_sgd_element, 0>(dtype, table, step, stream)
                                    : launch<lm_sgd_element, 1>(dtype, table, step, stream);
}

int lm_optim_adam(int dtype, const lm_optim_table *table, const lm_adam_step *step, void *stream) {
  return step->amsgrad ? launch<lm_adam_element, 3>(dtype, table, step, stream)
                       : launch<lm_adam_element, 2>(dtype, table, step, stream);
}

LM_KERNEL void lm_corrections_kernel(double lr, double beta1, double beta2, int64_t t, const int64_t *replayed,
                                     double *out) {
  double now = (double)(t + *replayed);
  out[0] = lr / (1 - pow(beta1, now));
  out[1] = 1 / sqrt(1 - pow(beta2, now));
}

int lm_optim_corrections(double lr, double beta1, double beta2, int64_t t, const int64_t *replayed, double *out,
                         void *stream) {
  return lm_launch(lm_corrections_kernel, 1, 1, 0, stream, lr, beta1, beta2, t, replayed, out);
}

/* ---- norms: in double, as the CPU's */

enum { LM_SUM_ABS, LM_SUM_SQUARES, LM_SUM_POWERS, LM_LARGEST_ABS };

template <int HOW>
LM_DEVICE double lm_norm_term(double x, double p) {
  x = fabs(x);
  return HOW == LM_SUM_SQUARES ? x * x : HOW == LM_SUM_POWERS ? pow(x, p) : x;
}
/* NaN once there is one. */
template <int HOW>
struct lm_norm_join {
  LM_DEVICE double operator()(double a, double b) const {
    return HOW != LM_LARGEST_ABS ? a + b : a > b || a != a ? a : b;
  }
};

template <int HOW, class T, int V>
LM_DEVICE double lm_norm_chunk(const T *x, int n, double p, double total) {
  for (int at = (int)threadIdx.x * V; at < n; at += LM_OPTIM_BLOCK * V) {
    lm_pack<T, V> in = lm_load<V>(x + at);
    LM_UNROLL
    for (int v = 0; v < V; v++)
      total = lm_norm_join<HOW>()(total, lm_norm_term<HOW>((double)lm_get<lm_compute<T>>(in.v[v]), p));
  }
  return total;
}

template <int HOW, class T>
LM_KERNEL void __launch_bounds__(LM_OPTIM_BLOCK) lm_norms_kernel(const lm_norm_table table, double p, double *part) {
  __shared__ double shared[LM_WARP];
  int i = lm_tensor_with(table.first, table.n, blockIdx.x);
  int64_t from = (int64_t)(blockIdx.x - table.first[i]) * LM_NORMS_CHUNK, rest = table.numel[i] - from;
  int n = rest < LM_NORMS_CHUNK ? (int)rest : LM_NORMS_CHUNK;
  const T *x = (const T *)table.data[i] + from;
  constexpr int V = lm_full_pack<T>::V;
  int whole = (uintptr_t)x % 16 == 0 ? n / V * V : 0;
  double total = lm_norm_chunk<HOW, T, V>(x, whole, p, 0);
  total = lm_norm_chunk<HOW, T, 1>(x + whole, n - whole, p, total);
  total = lm_block_reduce(total, lm_norm_join<HOW>(), shared);
  if (threadIdx.x == 0) part[blockIdx.x] = total;
}

template <int HOW>
LM_KERNEL void lm_norms_join_kernel(const double *part, int64_t n, double *out) {
  __shared__ double shared[LM_WARP];
  double total = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total = lm_norm_join<HOW>()(total, part[i]);
  total = lm_block_reduce(total, lm_norm_join<HOW>(), shared);
  if (threadIdx.x == 0) *out = total;
}

template <int HOW>
static int launch_norms(int dtype, const lm_norm_table *table, double p, double *part, void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    return lm_launch(lm_norms_kernel<HOW, decltype(element)>, table->first[table->n], LM_OPTIM_BLOCK, 0, stream, *table,
                     p, part);
  });
}

int lm_optim_norms(int dtype, const lm_norm_table *table, double p, double *part, void *stream) {
  if (p == (double)INFINITY) return launch_norms<LM_LARGEST_ABS>(dtype, table, p, part, stream);
  if (p == 2) return launch_norms<LM_SUM_SQUARES>(dtype, table, p, part, stream);
  if (p == 1) return launch_norms<LM_SUM_ABS>(dtype, table, p, part, stream);
  return launch_norms<LM_SUM_POWERS>(dtype, table, p, part, stream);
}

int lm_optim_norms_join(const double *part, int64_t n, double p, double *out, void *stream) {
  return lm_launch(p == (double)INFINITY ? lm_norms_join_kernel<LM_LARGEST_ABS> : lm_norms_join_kernel<LM_SUM_ABS>, 1,
                   LM_MAX_BLOCK, 0, stream, part, n, out);
}
