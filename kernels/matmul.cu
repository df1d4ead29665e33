#include "matmul.h"

#include "types.cuh"

enum { TILE = 16 };

/* Multiplies in tiles: a block makes one tile of y at a time, an element for each of TILE x TILE threads, over strips
 * of a and b in shared memory. Padding by one puts columns of a strip in different banks. */
/* Returns an element of a side's i-th matrix. */
template <class T>
LM_DEVICE T *lm_matmul_at(const lm_matmul_side &side, int64_t i, int64_t row, int64_t column) {
  return (T *)side.data + i * side.step + row * side.row + column * side.column;
}

template <class T>
LM_KERNEL void lm_matmul_tiles(lm_matmul_job j) {
  typedef lm_compute<T> C;
  __shared__ C left[TILE][TILE + 1], right[TILE][TILE + 1];
  int tx = (int)threadIdx.x, ty = (int)threadIdx.y;
  int64_t across = (j.n + TILE - 1) / TILE;
  int64_t row = blockIdx.x / across * TILE + ty, column = blockIdx.x % across * TILE + tx;
  for (int64_t i = blockIdx.y; i < j.batch; i += gridDim.y) {
    C sum = 0;
    for (int64_t k = 0; k < j.k; k += TILE) {
      left[ty][tx] = row < j.m && k + tx < j.k ? lm_get<C>(*lm_matmul_at<T>(j.a, i, row, k + tx)) : C(0);
      right[ty][tx] = k + ty < j.k && column < j.n ? lm_get<C>(*lm_matmul_at<T>(j.b, i, k + ty, column)) : C(0);
      __syncthreads();
      LM_UNROLL
      for (int t = 0; t < TILE; t++) sum += left[ty][t] * right[t][tx];
      __syncthreads();
    }
    if (row < j.m && column < j.n) {
      C value = (C)j.alpha * sum;
      if (j.beta != 0) value += (C)j.beta * lm_get<C>(*lm_matmul_at<T>(j.c, i, row, column));
      *lm_matmul_at<T>(j.y, i, row, column) = lm_put<T>(value);
    }
  }
}

int lm_k_matmul(const lm_matmul_job *job, void *stream) {
  int64_t tiles = ((job->m + TILE - 1) / TILE) * ((job->n + TILE - 1) / TILE);
  if (tiles > INT32_MAX) return (int)cudaErrorInvalidValue;
  dim3 grid((unsigned)tiles, lm_blocks(job->batch, 1, 65535)), block(TILE, TILE);
  return lm_for_dtype(job->dtype, [&](auto stored) {
    return lm_launch(lm_matmul_tiles<decltype(stored)>, grid, block, 0, stream, *job);
  });
}
