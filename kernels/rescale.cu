/* Multiplies many tensors by a number: each block has a chunk of one of the tensors in the table. */
#include "rescale.h"

#include "tensor_chunks.cuh"
#include "vectors.cuh"

enum { LM_RESCALE_BLOCK = 256 };

static_assert(sizeof(lm_tensor_table) + sizeof(double) * 2 <= 4096, "kernel arguments have room for 4 KB");

/* The type of the computation: double if X or Y is double, else float. */
template <class X, class Y>
using lm_rescale_real = std::conditional_t<lm_is_any<double, X, Y>, double, float>;

template <class X, class Y, int V>
LM_DEVICE bool lm_rescale_one_pack(const X *from, Y *to, double factor) {
  typedef lm_rescale_real<X, Y> real;
  lm_pack<X, V> x = lm_load<V>(from);
  lm_pack<Y, V> y;
  bool bad = false;
  LM_UNROLL
  for (int v = 0; v < V; v++) {
    real value = (real)lm_get<lm_compute<X>>(x.v[v]);
    bad = bad || !(value - value == 0);
    y.v[v] = lm_put<Y>(value * (real)factor);
  }
  lm_store(to, y);
  return bad;
}

template <class X, class Y>
LM_KERNEL void __launch_bounds__(LM_RESCALE_BLOCK)
    lm_rescale_kernel(const lm_tensor_table table, double factor, float *found) {
  int i = lm_tensor_of(table);
  int64_t begin = (int64_t)(blockIdx.x - table.first[i]) * LM_TABLE_CHUNK, rest = table.numel[i] - begin;
  int n = rest < LM_TABLE_CHUNK ? (int)rest : LM_TABLE_CHUNK;
  const X *from = (const X *)table.from[i] + begin;
  Y *to = (Y *)table.to[i] + begin;
  constexpr int V = sizeof(X) > sizeof(Y) ? (int)lm_full_pack<X>::V : (int)lm_full_pack<Y>::V;
  int whole = ((uintptr_t)from | (uintptr_t)to) % 16 == 0 ? n / V * V : 0;
  bool bad = false;
  for (int at = (int)threadIdx.x * V; at < whole; at += LM_RESCALE_BLOCK * V)
    bad = lm_rescale_one_pack<X, Y, V>(from + at, to + at, factor) || bad;
  for (int at = whole + (int)threadIdx.x; at < n; at += LM_RESCALE_BLOCK)
    bad = lm_rescale_one_pack<X, Y, 1>(from + at, to + at, factor) || bad;
  if (bad && found) *found = 1; /* all threads write the same value */
}

int lm_rescale_run(int from_dtype, int to_dtype, const lm_tensor_table *table, double factor, float *found,
                   void *stream) {
  return lm_for_float(from_dtype, [&](auto x) {
    return lm_for_float(to_dtype, [&](auto y) {
      return lm_launch(lm_rescale_kernel<decltype(x), decltype(y)>, table->first[table->n], LM_RESCALE_BLOCK, 0, stream,
                       *table, factor, found);
    });
  });
}
