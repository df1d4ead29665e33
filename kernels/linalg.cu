/* Prepares and completes the libraries' factorizations and transforms. A block sums a matrix or column. */
#include "linalg.h"

#include "dtypes.h"
#include "types.cuh"

enum { LM_LINALG_BLOCK = 256 };

template <class F>
static int lm_for_real(int dtype, F f) {
  return dtype == LM_F64 ? f(double{}) : f(float{});
}

/* Returns a block for each of `count`, at most 65535: blocks then loop. */
static unsigned lm_block_each(int64_t count) { return lm_blocks(count, 1, 65535); }

template <class T>
LM_KERNEL void lm_scale_kernel(T *x, int64_t n, T factor) {
  for (int64_t i = lm_thread(); i < n; i += lm_threads()) x[i] *= factor;
}

int lm_k_scale(int dtype, void *x, int64_t n, double factor, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_scale_kernel<T>, n, LM_LINALG_BLOCK, stream, (T *)x, n, (T)factor);
  });
}

template <class T>
LM_KERNEL void lm_half_lines_kernel(T *x, int64_t n, int64_t total, T single, T twice, bool real_ends) {
  int64_t half = n / 2 + 1;
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int64_t entry = i / 2 % half;
    bool end = entry == 0 || (n % 2 == 0 && entry == half - 1);
    x[i] = end && real_ends && i % 2 == 1 ? 0 : x[i] * (end ? single : twice);
  }
}

int lm_k_half_lines(int dtype, void *x, int64_t n, int64_t lines, double factor, double inner, int real_ends,
                    void *stream) {
  int64_t total = lines * 2 * (n / 2 + 1);
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_half_lines_kernel<T>, total, LM_LINALG_BLOCK, stream, (T *)x, n, total, (T)factor,
                          (T)(factor * inner), real_ends != 0);
  });
}

template <class T>
LM_KERNEL void lm_frames_kernel(const T *x, const T *window, lm_frames f, T *to) {
  int64_t total = f.batch * f.count * f.n;
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int64_t at = i % f.n, frame = i / f.n % f.count, line = i / f.n / f.count;
    to[i] = x[line * f.length + frame * f.hop + at] * window[at];
  }
}

int lm_k_frames(int dtype, const void *x, const void *window, lm_frames f, void *to, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_frames_kernel<T>, f.batch * f.count * f.n, LM_LINALG_BLOCK, stream, (const T *)x,
                          (const T *)window, f, (T *)to);
  });
}

/* Sums, for each sample, the frames that contain it, in their order. */
template <class T>
LM_KERNEL void lm_overlap_add_kernel(const T *frames, const T *window, lm_frames f, T *to) {
  for (int64_t i = lm_thread(); i < f.batch * f.length; i += lm_threads()) {
    int64_t at = i % f.length, line = i / f.length, first = at < f.n ? 0 : (at - f.n) / f.hop + 1;
    T sum = 0;
    for (int64_t frame = first; frame < f.count && frame * f.hop <= at; frame++) {
      int64_t in = at - frame * f.hop;
      sum += frames[(line * f.count + frame) * f.n + in] * window[in];
    }
    to[i] = sum;
  }
}

int lm_k_overlap_add(int dtype, const void *frames, const void *window, lm_frames f, void *to, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_overlap_add_kernel<T>, f.batch * f.length, LM_LINALG_BLOCK, stream, (const T *)frames,
                          (const T *)window, f, (T *)to);
  });
}

LM_KERNEL void lm_addresses_kernel(void **to, const char *base, int64_t bytes, int64_t count) {
  for (int64_t i = lm_thread(); i < count; i += lm_threads()) to[i] = (void *)(base + i * bytes);
}

int lm_k_addresses(void **to, const void *base, int64_t bytes, int64_t count, void *stream) {
  return lm_launch_each(lm_addresses_kernel, count, LM_LINALG_BLOCK, stream, to, (const char *)base, bytes, count);
}

template <class T>
LM_KERNEL void lm_identity_kernel(T *to, int64_t n, int64_t total) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) to[i] = (T)(i % (n * n) % (n + 1) == 0);
}

int lm_k_identity(int dtype, void *to, int64_t n, int64_t count, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_identity_kernel<T>, n * n * count, LM_LINALG_BLOCK, stream, (T *)to, n, n * n * count);
  });
}

template <class T>
LM_KERNEL void lm_flag_kernel(const T *a, int64_t size, int64_t total, int *flag) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    if (!(a[i] * 0 == 0)) flag[i / size] = 1;
  }
}

template <class T>
LM_KERNEL void lm_clear_kernel(T *a, int64_t size, int64_t total, const int *flag) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    if (flag[i / size] != 0) a[i] = 0;
  }
}

int lm_k_only_finite(int dtype, void *a, int64_t size, int64_t count, int *flag, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    int64_t total = size * count;
    int error = lm_launch_each(lm_flag_kernel<T>, total, LM_LINALG_BLOCK, stream, (const T *)a, size, total, flag);
    if (error) return error;
    return lm_launch_each(lm_clear_kernel<T>, total, LM_LINALG_BLOCK, stream, (T *)a, size, total, flag);
  });
}

struct lm_multiply_of {
  LM_DEVICE double operator()(double a, double b) const { return a * b; }
};

template <class T>
LM_KERNEL void lm_determinants_kernel(T *lu, const int *pivots, const int *info, int64_t n, int64_t count, T *sign,
                                      T *det) {
  __shared__ double shared[LM_WARP];
  for (int64_t m = blockIdx.x; m < count; m += gridDim.x) {
    double product = 1, signs = 1, log_of = 0;
    for (int64_t d = threadIdx.x; d < n; d += blockDim.x) {
      double u = (double)lu[(m * n + d) * n + d];
      if (u == 0) lu[(m * n + d) * n + d] = sizeof(T) == 8 ? (T)0x1p-52 : (T)0x1p-23; /* epsilon, for gradients */
      if (pivots[m * n + d] != d + 1) signs = -signs;
      product *= u;
      signs *= sign ? (u > 0 ? 1 : u < 0 ? -1 : u) : 1;
      if (sign) log_of += log(fabs(u));
    }
    signs = lm_block_reduce(signs, lm_multiply_of(), shared);
    double whole = sign ? lm_block_reduce(log_of, lm_add_of(), shared)
                        : signs * lm_block_reduce(product, lm_multiply_of(), shared);
    if (threadIdx.x != 0) continue;
    bool singular = info[m] > 0;
    det[m] = (T)(singular ? (sign ? log(0.0) : 0.0) : whole);
    if (sign) sign[m] = (T)(singular ? 0.0 : signs);
  }
}

int lm_k_determinants(int dtype, void *lu, const int *pivots, const int *info, int64_t n, int64_t count, void *sign,
                      void *det, void *stream) {
  int threads = LM_WARP;
  if (n > LM_WARP) threads = LM_LINALG_BLOCK;
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch(lm_determinants_kernel<T>, lm_block_each(count), threads, 0, stream, (T *)lu, pivots, info, n,
                     count, (T *)sign, (T *)det);
  });
}

LM_KERNEL void lm_check_pivots_kernel(int *pivots, int64_t n, int64_t total, int64_t rows, int bad_kind, lm_bad bad) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int pivot = pivots[i];
    if (pivot >= 1 && pivot <= rows) continue;
    lm_report_bad(bad, bad_kind, i % n + 1, pivot, rows);
    pivots[i] = (int)(i % n) + 1;
  }
}

int lm_k_check_pivots(int *pivots, int64_t n, int64_t count, int64_t rows, int bad_kind, lm_bad bad, void *stream) {
  return lm_launch_each(lm_check_pivots_kernel, n * count, LM_LINALG_BLOCK, stream, pivots, n, n * count, rows,
                        bad_kind, bad);
}

/* Computes order, the numbers 0, 1, … after the pivots' exchanges; row r of P^T is row order[r] of the identity. */
LM_KERNEL void lm_order_kernel(const int *pivots, int64_t k, int64_t m, int64_t count, int *order) {
  for (int64_t i = lm_thread(); i < count; i += lm_threads()) {
    int *its = order + i * m;
    for (int64_t r = 0; r < m; r++) its[r] = (int)r;
    for (int64_t d = 0; d < k; d++) {
      int other = pivots[i * k + d] - 1, kept = its[d];
      its[d] = its[other];
      its[other] = kept;
    }
  }
}

template <class T>
LM_KERNEL void lm_permutations_kernel(const int *order, int64_t m, int64_t total, T *p) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int64_t matrix = i / (m * m), row = i / m % m, column = i % m;
    p[i] = (T)(order[matrix * m + column] == row);
  }
}

int lm_k_permutations(int dtype, const int *pivots, int64_t k, int64_t m, int64_t count, int *scratch, void *p,
                      void *stream) {
  int error = lm_launch_each(lm_order_kernel, count, LM_LINALG_BLOCK, stream, pivots, k, m, count, scratch);
  if (error) return error;
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_permutations_kernel<T>, count * m * m, LM_LINALG_BLOCK, stream, scratch, m, count * m * m,
                          (T *)p);
  });
}

template <class T>
LM_KERNEL void lm_mirror_kernel(T *a, int64_t n, int64_t total) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int64_t first = i / (n * n) * (n * n), column = i / n % n, row = i % n;
    if (row < column) a[i] = a[first + row * n + column];
  }
}

int lm_k_mirror(int dtype, void *a, int64_t n, int64_t count, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_mirror_kernel<T>, n * n * count, LM_LINALG_BLOCK, stream, (T *)a, n, n * n * count);
  });
}

template <class T>
LM_KERNEL void lm_zero_diagonals_kernel(const T *a, int64_t m, int64_t n, int64_t total, int *info) {
  for (int64_t i = lm_thread(); i < total; i += lm_threads()) {
    int64_t matrix = i / n, d = i % n;
    if (a[matrix * m * n + d * (m + 1)] == 0) info[matrix] = 1;
  }
}

int lm_k_zero_diagonals(int dtype, const void *a, int64_t m, int64_t n, int64_t count, int *info, void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_zero_diagonals_kernel<T>, n * count, LM_LINALG_BLOCK, stream, (const T *)a, m, n,
                          n * count, info);
  });
}

template <class T>
LM_KERNEL void lm_squares_kernel(const T *b, int64_t from, int64_t m, int64_t columns, T *sums) {
  __shared__ double shared[LM_WARP];
  for (int64_t c = blockIdx.x; c < columns; c += gridDim.x) {
    double sum = 0;
    for (int64_t r = from + threadIdx.x; r < m; r += blockDim.x) sum += (double)b[c * m + r] * (double)b[c * m + r];
    sum = lm_block_reduce(sum, lm_add_of(), shared);
    if (threadIdx.x == 0) sums[c] = (T)sum;
  }
}

int lm_k_squares(int dtype, const void *b, int64_t from, int64_t m, int64_t k, int64_t count, void *sums,
                 void *stream) {
  return lm_for_real(dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch(lm_squares_kernel<T>, lm_block_each(k * count), LM_LINALG_BLOCK, 0, stream, (const T *)b, from, m,
                     k * count, (T *)sums);
  });
}

template <class T>
LM_KERNEL void lm_times_inverse_kernel(lm_inverse_values job) {
  int64_t size = job.rows * job.columns;
  for (int64_t m = blockIdx.x; m < job.count; m += gridDim.x) {
    const T *s = (const T *)job.s + m * job.k;
    T *x = (T *)job.x + m * job.x_step;
    double atol = job.atol ? job.atol[m] : 0, rtol = job.rtol ? job.rtol[m] : atol > 0 ? 0 : job.rtol_all;
    double least = rtol * (double)s[0];
    if (atol > least) least = atol;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      double value = (double)s[job.by_rows ? i % job.rows : i / job.rows];
      x[i] = value > least ? (T)((double)x[i] / value) : (T)0;
    }
    if (threadIdx.x != 0 || !job.rank) continue;
    int64_t rank = 0;
    while (rank < job.k && (double)s[rank] > least) rank++;
    job.rank[m] = rank;
  }
}

int lm_k_times_inverse(const lm_inverse_values *job, void *stream) {
  return lm_for_real(job->dtype, [=](auto t) {
    return lm_launch(lm_times_inverse_kernel<decltype(t)>, lm_block_each(job->count), LM_LINALG_BLOCK, 0, stream, *job);
  });
}
