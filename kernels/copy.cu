#include "copy.h"

#include "strided.cuh"

int lm_copy_bytes(void *dst, const void *src, size_t bytes, void *stream) {
  return (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
}

int lm_set_bytes(void *dst, int byte, size_t bytes, void *stream) {
  return (int)cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream);
}

enum { TILE = 32, TILE_ROWS = 8, WORD_TILE = 64, WORD_THREADS = 256 };

/* A transposing copy: `along` has stride 1 in dst, `across` in src; the grid counts the other dims. */
typedef struct lm_transposed_copy {
  const void *src;
  void *dst;
  int along, across, ndim;
  int64_t src_step, dst_step; /* elements between neighbors: of `along` in src, of `across` in dst */
  lm_divider tiles_along, tiles_across, size[LM_STRIDED_DIMS];
  int64_t src_stride[LM_STRIDED_DIMS], dst_stride[LM_STRIDED_DIMS];
} lm_transposed_copy;

/* Finds the block's tile: its plane's first element in src and dst, and the tile's column and row there. */
template <class T>
LM_DEVICE void lm_find_tile(const lm_transposed_copy &a, const T **src, T **dst, uint32_t *column, uint32_t *row) {
  uint32_t in_dim, rest = lm_divide_rest(blockIdx.x, a.tiles_along, column);
  rest = lm_divide_rest(rest, a.tiles_across, row);
  *src = (const T *)a.src;
  *dst = (T *)a.dst;
  for (int d = 0; d < a.ndim; d++) {
    rest = lm_divide_rest(rest, a.size[d], &in_dim);
    *src += in_dim * a.src_stride[d];
    *dst += in_dim * a.dst_stride[d];
  }
}

template <class T>
LM_KERNEL void __launch_bounds__(TILE *TILE_ROWS) lm_transpose_tile(const lm_transposed_copy a) {
  enum { PAD = sizeof(T) < 4 ? 4 / sizeof(T) : 1 }; /* a column's elements are in different banks */
  __shared__ T tile[TILE][TILE + PAD];
  const T *src;
  T *dst;
  uint32_t column, row;
  lm_find_tile(a, &src, &dst, &column, &row);
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

/* Transposes elements of less than 4 bytes by words of R of them, which must suit all sizes, strides and addresses: a
 * thread transposes squares of R x R elements in its registers. */
template <class T>
LM_KERNEL void __launch_bounds__(WORD_THREADS) lm_transpose_words(const lm_transposed_copy a) {
  enum { R = 4 / sizeof(T), WORDS = WORD_TILE / R };
  /* Row i is in [i % R][i / R], so a warp reads a column from different banks. */
  __shared__ uint32_t tile[R][WORDS][WORDS + 1];
  const T *src;
  T *dst;
  uint32_t column, row;
  lm_find_tile(a, &src, &dst, &column, &row);
  int along = (int)column * WORD_TILE, across = (int)row * WORD_TILE, x = threadIdx.x % WORDS, y = threadIdx.x / WORDS;
  LM_UNROLL
  for (int k = 0; k < WORD_TILE; k += WORD_THREADS / WORDS) {
    int i = y + k;
    if (along + i < a.along && across + x * R < a.across)
      tile[i % R][i / R][x] = *(const uint32_t *)(src + (along + i) * a.src_step + across + x * R);
  }
  __syncthreads();
  LM_UNROLL
  for (int k = 0; k < WORDS; k += WORD_THREADS / WORDS) {
    int c = y + k;
    if (across + c * R >= a.across || along + x * R >= a.along) continue;
    lm_pack<T, R> in[R], out;
    LM_UNROLL
    for (int r = 0; r < R; r++) memcpy(&in[r], &tile[r][x][c], 4);
    LM_UNROLL
    for (int q = 0; q < R; q++) {
      LM_UNROLL
      for (int r = 0; r < R; r++) out.v[r] = in[r].v[q];
      lm_store(dst + (across + c * R + q) * a.dst_step + along + x * R, out);
    }
  }
}

/* Returns true if lm_transpose_words can do the copy, and the dims are long enough for its larger tiles. */
static bool by_words(const lm_transposed_copy *a, int width) {
  int together = 4 / width;
  if (together < 2 || a->along < WORD_TILE / 2 || a->across < WORD_TILE / 2) return false;
  int64_t apart = a->along | a->across | a->src_step | a->dst_step;
  for (int d = 0; d < a->ndim; d++) apart |= a->src_stride[d] | a->dst_stride[d];
  return apart % together == 0 && ((uintptr_t)a->src | (uintptr_t)a->dst) % 4 == 0;
}

int lm_copy_transposed(const lm_strided_layout *at, int dim, void *stream) {
  lm_transposed_copy a = {};
  a.dst = at->data[0], a.src = at->data[1];
  a.along = (int)at->size[0], a.across = (int)at->size[dim];
  a.src_step = at->stride[1][0], a.dst_step = at->stride[0][dim];
  int64_t blocks = 1;
  for (int d = 1; d < at->ndim; d++) {
    if (d == dim) continue;
    a.size[a.ndim] = lm_divider_make((uint32_t)at->size[d]);
    a.dst_stride[a.ndim] = at->stride[0][d];
    a.src_stride[a.ndim++] = at->stride[1][d];
    blocks *= at->size[d];
  }
  int width = lm_dtype_width(at->dtype[0]);
  bool words = by_words(&a, width);
  int tile = words ? WORD_TILE : TILE;
  int64_t tiles_along = (a.along + tile - 1) / tile, tiles_across = (a.across + tile - 1) / tile;
  a.tiles_along = lm_divider_make((uint32_t)tiles_along);
  a.tiles_across = lm_divider_make((uint32_t)tiles_across);
  unsigned grid = (unsigned)(blocks * tiles_along * tiles_across);
  if (words && width == 1) return lm_launch(lm_transpose_words<uint8_t>, grid, WORD_THREADS, 0, stream, a);
  if (words) return lm_launch(lm_transpose_words<uint16_t>, grid, WORD_THREADS, 0, stream, a);
  return lm_for_width(width, [&](auto element) {
    return lm_launch(lm_transpose_tile<decltype(element)>, grid, TILE * TILE_ROWS, 0, stream, a);
  });
}

/* Casts a pack at a time in each thread: 16 bytes of halves, two times 16 of floats. */
template <class S, class D>
LM_KERNEL void __launch_bounds__(WORD_THREADS) lm_cast_flat(const S *src, D *dst, int64_t n) {
  enum { V = 8 };
  for (int64_t m = lm_thread() * V; m < n; m += lm_threads() * V) {
    if (m + V <= n) {
      lm_pack<S, V> in = lm_load<V>(src + m);
      lm_pack<D, V> out;
      LM_UNROLL
      for (int v = 0; v < V; v++) out.v[v] = lm_put<D>(lm_get<float>(in.v[v]));
      lm_store<V>(dst + m, out);
    } else {
      for (int64_t i = m; i < n; i++) dst[i] = lm_put<D>(lm_get<float>(src[i]));
    }
  }
}

template <class S, class D>
static int cast_flat(const void *src, void *dst, int64_t n, void *stream) {
  unsigned blocks = lm_blocks(n, 8 * WORD_THREADS, 1 << 20);
  return lm_launch(lm_cast_flat<S, D>, blocks, WORD_THREADS, 0, stream, (const S *)src, (D *)dst, n);
}

bool lm_copy_can_cast(int from, int to) {
  return (from == LM_F32 && (to == LM_F16 || to == LM_BF16)) || (to == LM_F32 && (from == LM_F16 || from == LM_BF16));
}

int lm_copy_cast(void *dst, int to, const void *src, int from, int64_t n, void *stream) {
  if (from == LM_F16) return cast_flat<lm_f16, float>(src, dst, n, stream);
  if (from == LM_BF16) return cast_flat<lm_bf16, float>(src, dst, n, stream);
  if (to == LM_F16) return cast_flat<float, lm_f16>(src, dst, n, stream);
  return cast_flat<float, lm_bf16>(src, dst, n, stream);
}
