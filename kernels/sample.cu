/* Draws numbers by rejection, and indices by weight (sample.h). */
#include "sample.h"

#include "rejection.h"
#include "types.cuh"

enum { LM_SAMPLE_BLOCK = 256, LM_SUM_BLOCK = 1024, LM_SUM_BLOCKS = 4096 /* the most of a launch */ };

LM_DEVICE uint64_t lm_sample_offset(const lm_blocks_drawn &d) { return d.offset + (d.extra ? *d.extra : 0); }

template <class T>
LM_KERNEL void __launch_bounds__(LM_SAMPLE_BLOCK)
    lm_sample_kernel(const T *x, const T *p, T *out, int64_t n, lm_blocks_drawn draw) {
  int64_t i = lm_thread();
  if (i >= n) return;
  lm_uniforms u = lm_uniforms_of(draw.seed, lm_sample_offset(draw), i);
  double v = lm_get<double>(x[i]);
  out[i] = lm_put<T>((lm_compute<T>)(p ? lm_binomial(v, lm_get<double>(p[i]), &u) : lm_poisson(v, &u)));
}

int lm_sample_counts(int dtype, const void *x, const void *p, void *out, int64_t n, lm_blocks_drawn draw,
                     void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_launch_each(lm_sample_kernel<T>, n, LM_SAMPLE_BLOCK, stream, (const T *)x, (const T *)p, (T *)out, n,
                          draw);
  });
}

/* Computes prefix sums of a row by a block: within warps, then over earlier warps and earlier elements. */
template <class T>
LM_DEVICE void lm_sample_row_sums(const T *row, double *sum, int64_t n, double *of_warp) {
  double before = 0;
  int lane = lm_lane(), warp = (int)(threadIdx.x / LM_WARP);
  for (int64_t first = 0; first < n; first += LM_SUM_BLOCK) {
    int64_t j = first + threadIdx.x;
    double upto = j < n ? lm_get<double>(row[j]) : 0;
    for (int by = 1; by < LM_WARP; by *= 2) {
      double other = lm_shuffle_up(upto, by);
      if (lane >= by) upto += other;
    }
    if (lane == LM_WARP - 1) of_warp[warp] = upto;
    __syncthreads();
    double warps = 0;
    for (int w = 0; w < warp; w++) warps += of_warp[w];
    if (j < n) sum[j] = before + warps + upto;
    for (int w = 0; w < LM_SUM_BLOCK / LM_WARP; w++) before += of_warp[w];
    __syncthreads();
  }
}

template <class T>
LM_KERNEL void __launch_bounds__(LM_SUM_BLOCK)
    lm_sample_sums_kernel(const T *x, double *sums, int64_t rows, int64_t n) {
  __shared__ double of_warp[LM_WARP];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    lm_sample_row_sums(x + row * n, sums + row * n, n, of_warp);
  }
}

int lm_sample_sums(int dtype, const void *x, double *sums, int64_t rows, int64_t n, void *stream) {
  return lm_for_float(dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_launch(lm_sample_sums_kernel<T>, lm_blocks(rows, 1, LM_SUM_BLOCKS), LM_SUM_BLOCK, 0, stream, (const T *)x,
                     sums, rows, n);
  });
}

LM_KERNEL void __launch_bounds__(LM_SAMPLE_BLOCK)
    lm_sample_indices_kernel(const double *sums, int64_t *indices, int64_t count, int64_t n, int64_t k,
                             lm_blocks_drawn draw) {
  int64_t i = lm_thread();
  if (i >= count) return;
  const double *sum = sums + i / k * n;
  lm_philox_block block = lm_philox(draw.seed, lm_sample_offset(draw) + (uint64_t)i / 2);
  double x = sum[n - 1] * lm_uniform_f64(lm_philox_u64(block, (int)(i % 2)));
  int64_t low = 0, high = n - 1;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (sum[middle] > x) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  while (low > 0 && sum[low] == sum[low - 1]) low--; /* rounding moved x up to the total: skips weights of 0 */
  indices[i] = low + 1;
}

int lm_sample_indices(const double *sums, int64_t *indices, int64_t rows, int64_t n, int64_t k, lm_blocks_drawn draw,
                      void *stream) {
  return lm_launch_each(lm_sample_indices_kernel, rows * k, LM_SAMPLE_BLOCK, stream, sums, indices, rows * k, n, k,
                        draw);
}
