/* Many tensors times one number: a row of blocks a tensor. */
#include "rescale.h"

#include "pack.cuh"

enum { LM_RESCALE_BLOCK = 256, LM_RESCALE_BLOCKS = 64 /* a tensor, at most */ };

static_assert(sizeof(lm_rescale_table) <= 4096, "kernel arguments have room for 4 KB");

/* What both are computed in: double if one of them is. */
template <class X, class Y>
struct lm_rescale_real {
  typedef float type;
};
template <class X>
struct lm_rescale_real<X, double> {
  typedef double type;
};
template <class Y>
struct lm_rescale_real<double, Y> {
  typedef double type;
};
template <>
struct lm_rescale_real<double, double> {
  typedef double type;
};

template <class X, class Y, int V>
LM_DEVICE bool lm_rescale_pack(const X *from, Y *to, double factor) {
  typedef typename lm_rescale_real<X, Y>::type real;
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
LM_KERNEL void __launch_bounds__(LM_RESCALE_BLOCK) lm_rescale_kernel(const lm_rescale_table table) {
  const X *from = (const X *)table.from[blockIdx.y];
  Y *to = (Y *)table.to[blockIdx.y];
  int64_t n = table.numel[blockIdx.y];
  constexpr int V = sizeof(X) > sizeof(Y) ? (int)lm_full_pack<X>::V : (int)lm_full_pack<Y>::V;
  int64_t packs = ((uintptr_t)from | (uintptr_t)to) % 16 == 0 ? n / V : 0;
  bool bad = false;
  for (int64_t i = lm_thread(); i < packs; i += lm_threads())
    bad = lm_rescale_pack<X, Y, V>(from + i * V, to + i * V, table.factor) || bad;
  for (int64_t i = packs * V + lm_thread(); i < n; i += lm_threads())
    bad = lm_rescale_pack<X, Y, 1>(from + i, to + i, table.factor) || bad;
  if (bad) *table.found = 1; /* all write the same */
}

int lm_rescale_run(int from_dtype, int to_dtype, const lm_rescale_table *table, int64_t most, void *stream) {
  dim3 grid(lm_blocks(most, LM_RESCALE_BLOCK * 16, LM_RESCALE_BLOCKS), (unsigned)table->n);
  return lm_for_float(from_dtype, [&](auto x) {
    return lm_for_float(to_dtype, [&](auto y) {
      return lm_launch(lm_rescale_kernel<decltype(x), decltype(y)>, grid, LM_RESCALE_BLOCK, 0, stream, *table);
    });
  });
}
