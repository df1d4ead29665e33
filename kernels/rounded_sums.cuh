/* Accumulates sums, by atomics or by threads in turn, in the compute type, and rounds them once they are complete. */
#pragma once

#include "types.cuh"

template <class T>
LM_KERNEL void lm_round_sums(const lm_compute<T> *sums, T *out, int64_t n) {
  for (int64_t i = lm_thread(); i < n; i += lm_threads()) out[i] = lm_put<T>(sums[i]);
}

/* Zeroes n sums, calls launch(sums) to enqueue a kernel that adds to them, and rounds them to out. scratch: n floats
 * for 16-bit dtypes, else NULL. */
template <class T, class F>
static int lm_sum_into(void *out, float *scratch, int64_t n, void *stream, F launch) {
  typedef lm_compute<T> A;
  constexpr bool ROUNDS = sizeof(T) < sizeof(A);
  A *sums = ROUNDS ? (A *)scratch : (A *)out;
  if (n == 0) return 0;
  int error = (int)cudaMemsetAsync(sums, 0, (size_t)n * sizeof(A), (cudaStream_t)stream);
  if (error == 0) error = launch(sums);
  return error != 0 || !ROUNDS ? error : lm_launch_each(lm_round_sums<T>, n, 256, stream, sums, (T *)out, n);
}
