#include "copy.h"

#include "types.cuh"

extern "C" int lm_copy_bytes(void *dst, const void *src, size_t bytes, void *stream) {
  return (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
}

extern "C" int lm_set_bytes(void *dst, int byte, size_t bytes, void *stream) {
  return (int)cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream);
}

enum { TILE = 32, TILE_ROWS = 8 };

/* `along` has stride 1 in dst, `across` in src; the other dims are counted by the grid. */
typedef struct lm_turned {
  const void *src;
  void *dst;
  int along, across, ndim;
  int64_t src_step, dst_step; /* from one element to the next: of `along` in src, of `across` in dst */
  lm_divider tiles_along, tiles_across, size[LM_WALK_DIMS];
  int64_t src_stride[LM_WALK_DIMS], dst_stride[LM_WALK_DIMS];
} lm_turned;

template <class T>
LM_KERNEL void __launch_bounds__(TILE *TILE_ROWS) lm_turn(const lm_turned a) {
  enum { PAD = sizeof(T) < 4 ? 4 / sizeof(T) : 1 }; /* a column's elements lie in different banks */
  __shared__ T tile[TILE][TILE + PAD];
  uint32_t column, row, in_dim, rest = lm_divide_rest(blockIdx.x, a.tiles_along, &column);
  rest = lm_divide_rest(rest, a.tiles_across, &row);
  const T *src = (const T *)a.src;
  T *dst = (T *)a.dst;
  for (int d = 0; d < a.ndim; d++) {
    rest = lm_divide_rest(rest, a.size[d], &in_dim);
    src += in_dim * a.src_stride[d];
    dst += in_dim * a.dst_stride[d];
  }
  int along = (int)column * TILE, across = (int)row * TILE, x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  LM_UNROLL
  for (int k = 0; k < TILE; k += TILE_ROWS) {
    if (along + y + k < a.along && across + x < a.across) {
      tile[y + k][x] = src[(along + y + k) * a.src_step + across + x];
    }
  }
  __syncthreads();
  LM_UNROLL
  for (int k = 0; k < TILE; k += TILE_ROWS) {
    if (across + y + k < a.across && along + x < a.along) {
      dst[(across + y + k) * a.dst_step + along + x] = tile[x][y + k];
    }
  }
}

extern "C" int lm_copy_turned(const lm_walk_layout *at, int dim, void *stream) {
  lm_turned a = {};
  a.dst = at->data[0], a.src = at->data[1];
  a.along = (int)at->size[0], a.across = (int)at->size[dim];
  a.src_step = at->stride[1][0], a.dst_step = at->stride[0][dim];
  int64_t tiles_along = (a.along + TILE - 1) / TILE, tiles_across = (a.across + TILE - 1) / TILE;
  int64_t blocks = tiles_along * tiles_across;
  a.tiles_along = lm_divider_make((uint32_t)tiles_along);
  a.tiles_across = lm_divider_make((uint32_t)tiles_across);
  for (int d = 1; d < at->ndim; d++) {
    if (d == dim) continue;
    a.size[a.ndim] = lm_divider_make((uint32_t)at->size[d]);
    a.dst_stride[a.ndim] = at->stride[0][d];
    a.src_stride[a.ndim++] = at->stride[1][d];
    blocks *= at->size[d];
  }
  static const uint8_t width[] = {
#define X(id, name, type, bytes) bytes,
      LM_DTYPES(X)
#undef X
  };
  return lm_for_width(width[at->dtype[0]], [&](auto element) {
    return lm_launch(lm_turn<decltype(element)>, (unsigned)blocks, TILE * TILE_ROWS, 0, stream, a);
  });
}
