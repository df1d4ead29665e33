/* Runs optimizer steps and norms: each block has a chunk of one of the tensors in the table. */
#include "optim.h"

#include "tensor_chunks.cuh"
#include "vectors.cuh"

enum { LM_OPTIM_BLOCK = 256 };

static_assert(sizeof(lm_optim_table) + sizeof(lm_optim_call) <= 4096, "kernel arguments have room for 4 KB");
static_assert(sizeof(lm_tensor_table) + sizeof(double) * 2 <= 4096, "kernel arguments have room for 4 KB");

/* ---- steps. E: the update of an element, generated from the optimizer's entry */

/* Updates n elements of tensor i from `from` on, V at a time. MASK: bits of the states that exist. */
template <class E, class T, int V, unsigned MASK, class A>
LM_DEVICE void lm_update_chunk(const lm_optim_table &table, unsigned modes, const A *c, int i, int64_t from, int n) {
  const T *grad = (const T *)table.grad[i] + from;
  T *param = (T *)table.param[i] + from, *state[E::STATES];
  LM_UNROLL
  for (int k = 0; k < E::STATES; k++) state[k] = MASK >> k & 1 ? (T *)table.state[k][i] + from : nullptr;
  for (int at = (int)threadIdx.x * V; at < n; at += LM_OPTIM_BLOCK * V) {
    lm_pack<T, V> g = lm_load<V>(grad + at), p = lm_load<V>(param + at), value[E::STATES];
    LM_UNROLL
    for (int k = 0; k < E::STATES; k++)
      if (MASK >> k & 1) value[k] = lm_load<V>(state[k] + at);
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      A own[1 + E::STATES] = {lm_get<A>(p.v[v])};
      LM_UNROLL
      for (int k = 0; k < E::STATES; k++)
        if (MASK >> k & 1) own[1 + k] = lm_get<A>(value[k].v[v]);
      E::update(c, modes, lm_get<A>(g.v[v]), own);
      p.v[v] = lm_put<T>(own[0]);
      LM_UNROLL
      for (int k = 0; k < E::STATES; k++)
        if (MASK >> k & 1) value[k].v[v] = lm_put<T>(own[1 + k]);
    }
    lm_store(param + at, p);
    LM_UNROLL
    for (int k = 0; k < E::STATES; k++)
      if (MASK >> k & 1) lm_store(state[k] + at, value[k]);
  }
}

template <class E, class T, unsigned MASK>
LM_KERNEL void __launch_bounds__(LM_OPTIM_BLOCK) lm_optim_kernel(const lm_optim_table table, const lm_optim_call call) {
  lm_compute<T> c[E::COEFFICIENTS];
  LM_UNROLL
  for (int k = 0; k < E::COEFFICIENTS; k++) { /* an if, since ?: would copy the arguments to the stack */
    if (call.planned) {
      c[k] = (lm_compute<T>)call.planned->of[k];
    } else {
      c[k] = (lm_compute<T>)call.coefficients.of[k];
    }
  }
  int i = lm_tensor_of(table);
  int64_t from = (int64_t)(blockIdx.x - table.first[i]) * LM_OPTIM_CHUNK, rest = table.numel[i] - from;
  int n = rest < LM_OPTIM_CHUNK ? (int)rest : LM_OPTIM_CHUNK;
  uintptr_t address = (uintptr_t)table.param[i] | (uintptr_t)table.grad[i];
  LM_UNROLL
  for (int k = 0; k < E::STATES; k++)
    if (MASK >> k & 1) address |= (uintptr_t)table.state[k][i];
  constexpr int V = lm_full_pack<T>::V;
  int whole = address % 16 == 0 ? n / V * V : 0;
  lm_update_chunk<E, T, V, MASK>(table, call.modes, c, i, from, whole);
  lm_update_chunk<E, T, 1, MASK>(table, call.modes, c, i, from + whole, n - whole);
}

template <class E, unsigned MASK>
static int launch(int dtype, const lm_optim_table *table, const lm_optim_call *call, void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_launch(lm_optim_kernel<E, T, MASK>, table->first[table->n], LM_OPTIM_BLOCK, 0, stream, *table, *call);
  });
}

#include "optim_entries.cuh"

int lm_optim_update(int dtype, const lm_optim_table *table, const lm_optim_call *call, void *stream) {
  return launch_family(dtype, table, call, stream);
}

LM_KERNEL void lm_plan_kernel(int family, lm_optim_numbers numbers, double *carried, int n, lm_optim_f64 *out) {
  double next[LM_OPTIM_CARRIED] = {};
  numbers.carries = numbers.carries || carried[0] > numbers.t; /* later replays use the carried numbers */
  numbers.t = carried[0]++;
  for (int k = 0; k < n; k++) numbers.carried[k] = carried[1 + k];
  lm_optim_plan(family, &numbers, out, next);
  for (int k = 0; k < n; k++) carried[1 + k] = next[k];
}

int lm_optim_plan_replay(int family, const lm_optim_numbers *numbers, double *carried, int n, lm_optim_f64 *out,
                         void *stream) {
  return lm_launch(lm_plan_kernel, 1, 1, 0, stream, family, *numbers, carried, n, out);
}

/* ---- norms, summed in double as on the CPU */

enum { LM_SUM_ABS, LM_SUM_SQUARES, LM_SUM_POWERS, LM_LARGEST_ABS };

template <int HOW>
LM_DEVICE double lm_norm_term(double x, double p) {
  x = fabs(x);
  return HOW == LM_SUM_SQUARES ? x * x : HOW == LM_SUM_POWERS ? pow(x, p) : x;
}
/* Joins two terms; NaN wins. */
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
LM_KERNEL void __launch_bounds__(LM_OPTIM_BLOCK) lm_norms_kernel(const lm_tensor_table table, double p, double *part) {
  __shared__ double shared[LM_WARP];
  int i = lm_tensor_of(table);
  int64_t from = (int64_t)(blockIdx.x - table.first[i]) * LM_TABLE_CHUNK, rest = table.numel[i] - from;
  int n = rest < LM_TABLE_CHUNK ? (int)rest : LM_TABLE_CHUNK;
  const T *x = (const T *)table.from[i] + from;
  constexpr int V = lm_full_pack<T>::V;
  int whole = (uintptr_t)x % 16 == 0 ? n / V * V : 0;
  double total = lm_norm_chunk<HOW, T, V>(x, whole, p, 0);
  total = lm_norm_chunk<HOW, T, 1>(x + whole, n - whole, p, total);
  total = lm_block_reduce(total, lm_norm_join<HOW>(), shared);
  if (threadIdx.x == 0) part[blockIdx.x] = total;
}

template <int HOW>
LM_KERNEL void __launch_bounds__(LM_MAX_BLOCK) lm_norms_join_kernel(const double *part, int64_t n, double *out) {
  __shared__ double shared[LM_WARP];
  double total = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total = lm_norm_join<HOW>()(total, part[i]);
  total = lm_block_reduce(total, lm_norm_join<HOW>(), shared);
  if (threadIdx.x == 0) *out = total;
}

template <int HOW>
static int launch_norms(int dtype, const lm_tensor_table *table, double p, double *part, void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    return lm_launch(lm_norms_kernel<HOW, decltype(element)>, table->first[table->n], LM_OPTIM_BLOCK, 0, stream, *table,
                     p, part);
  });
}

int lm_optim_norms(int dtype, const lm_tensor_table *table, double p, double *part, void *stream) {
  if (p == (double)INFINITY) return launch_norms<LM_LARGEST_ABS>(dtype, table, p, part, stream);
  if (p == 2) return launch_norms<LM_SUM_SQUARES>(dtype, table, p, part, stream);
  if (p == 1) return launch_norms<LM_SUM_ABS>(dtype, table, p, part, stream);
  return launch_norms<LM_SUM_POWERS>(dtype, table, p, part, stream);
}

int lm_optim_norms_join(const double *part, int64_t n, double p, double *out, void *stream) {
  return lm_launch(p == (double)INFINITY ? lm_norms_join_kernel<LM_LARGEST_ABS> : lm_norms_join_kernel<LM_SUM_ABS>, 1,
                   LM_MAX_BLOCK, 0, stream, part, n, out);
}
