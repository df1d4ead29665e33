#include "conv.h"

#include "types.cuh"

enum { BLOCK = 128, MAX_BLOCKS = 1 << 20 };

LM_DEVICE int64_t lm_conv_position(const int64_t *stride, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
}

/* Computes y: thread i sums the i-th element in the order n, oh, ow, k. */
template <class T>
LM_KERNEL void lm_conv_forward_sums(lm_conv_sums j) {
  typedef lm_compute<T> C;
  const T *x = (const T *)j.x, *weight = (const T *)j.weight;
  int64_t each = j.c / j.groups;
  for (int64_t i = lm_thread(); i < j.n * j.oh * j.ow * j.k; i += lm_threads()) {
    int64_t k = i % j.k, ow = i / j.k % j.ow, oh = i / j.k / j.ow % j.oh, n = i / j.k / j.ow / j.oh;
    int64_t first = k / (j.k / j.groups) * each;
    C sum = 0;
    for (int64_t a = 0; a < j.kh; a++) {
      int64_t h = oh * j.stride[0] - j.padding[0] + a * j.dilation[0];
      if (h < 0 || h >= j.h) continue;
      for (int64_t b = 0; b < j.kw; b++) {
        int64_t w = ow * j.stride[1] - j.padding[1] + b * j.dilation[1];
        if (w < 0 || w >= j.w) continue;
        for (int64_t c = 0; c < each; c++) {
          sum += lm_get<C>(x[lm_conv_position(j.x_stride, n, first + c, h, w)]) *
                 lm_get<C>(weight[lm_conv_position(j.w_stride, k, c, a, b)]);
        }
      }
    }
    if (j.bias) sum += lm_get<C>(((const T *)j.bias)[k * j.bias_stride]);
    ((T *)j.y)[lm_conv_position(j.y_stride, n, k, oh, ow)] = lm_put<T>(sum);
  }
}

/* Returns the output coordinate that reads input coordinate `at` by the kernel's tap, or -1. */
LM_DEVICE int64_t lm_conv_meets(int64_t at, int64_t tap, int64_t stride, int64_t padding, int64_t dilation,
                                int64_t size) {
  int64_t from = at + padding - tap * dilation;
  return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : -1;
}

/* Computes x: thread i sums the i-th element in the order n, h, w, c. */
template <class T>
LM_KERNEL void lm_conv_input_sums(lm_conv_sums j) {
  typedef lm_compute<T> C;
  const T *y = (const T *)j.y, *weight = (const T *)j.weight;
  int64_t each = j.c / j.groups, outs = j.k / j.groups;
  for (int64_t i = lm_thread(); i < j.n * j.h * j.w * j.c; i += lm_threads()) {
    int64_t c = i % j.c, w = i / j.c % j.w, h = i / j.c / j.w % j.h, n = i / j.c / j.w / j.h;
    int64_t first = c / each * outs;
    C sum = 0;
    for (int64_t a = 0; a < j.kh; a++) {
      int64_t oh = lm_conv_meets(h, a, j.stride[0], j.padding[0], j.dilation[0], j.oh);
      if (oh < 0) continue;
      for (int64_t b = 0; b < j.kw; b++) {
        int64_t ow = lm_conv_meets(w, b, j.stride[1], j.padding[1], j.dilation[1], j.ow);
        if (ow < 0) continue;
        for (int64_t k = first; k < first + outs; k++) {
          sum += lm_get<C>(y[lm_conv_position(j.y_stride, n, k, oh, ow)]) *
                 lm_get<C>(weight[lm_conv_position(j.w_stride, k, c % each, a, b)]);
        }
      }
    }
    ((T *)j.x)[lm_conv_position(j.x_stride, n, c, h, w)] = lm_put<T>(sum);
  }
}

/* Computes weight: a block sums one element at a time, over all n, oh, ow. */
template <class T>
LM_KERNEL void lm_conv_weight_sums(lm_conv_sums j) {
  typedef lm_compute<T> C;
  __shared__ C partial[LM_WARP];
  const T *x = (const T *)j.x, *y = (const T *)j.y;
  int64_t each = j.c / j.groups;
  for (int64_t i = blockIdx.x; i < j.k * each * j.kh * j.kw; i += gridDim.x) {
    int64_t b = i % j.kw, a = i / j.kw % j.kh, c = i / j.kw / j.kh % each, k = i / j.kw / j.kh / each;
    int64_t channel = k / (j.k / j.groups) * each + c;
    C sum = 0;
    for (int64_t p = threadIdx.x; p < j.n * j.oh * j.ow; p += blockDim.x) {
      int64_t ow = p % j.ow, oh = p / j.ow % j.oh, n = p / j.ow / j.oh;
      int64_t h = oh * j.stride[0] - j.padding[0] + a * j.dilation[0];
      int64_t w = ow * j.stride[1] - j.padding[1] + b * j.dilation[1];
      if (h < 0 || h >= j.h || w < 0 || w >= j.w) continue;
      sum += lm_get<C>(x[lm_conv_position(j.x_stride, n, channel, h, w)]) *
             lm_get<C>(y[lm_conv_position(j.y_stride, n, k, oh, ow)]);
    }
    sum = lm_block_reduce(sum, lm_add_of(), partial);
    if (threadIdx.x == 0) ((T *)j.weight)[lm_conv_position(j.w_stride, k, c, a, b)] = lm_put<T>(sum);
  }
}

int lm_k_conv_forward(const lm_conv_sums *j, void *stream) {
  unsigned blocks = lm_blocks(j->n * j->oh * j->ow * j->k, BLOCK, MAX_BLOCKS);
  return lm_for_float(j->dtype, [&](auto stored) {
    return lm_launch(lm_conv_forward_sums<decltype(stored)>, blocks, BLOCK, 0, stream, *j);
  });
}

int lm_k_conv_input(const lm_conv_sums *j, void *stream) {
  unsigned blocks = lm_blocks(j->n * j->h * j->w * j->c, BLOCK, MAX_BLOCKS);
  return lm_for_float(j->dtype, [&](auto stored) {
    return lm_launch(lm_conv_input_sums<decltype(stored)>, blocks, BLOCK, 0, stream, *j);
  });
}

int lm_k_conv_weight(const lm_conv_sums *j, void *stream) {
  unsigned blocks = lm_blocks(j->k * (j->c / j->groups) * j->kh * j->kw, 1, MAX_BLOCKS);
  unsigned threads = j->n * j->oh * j->ow < 16 * BLOCK ? (unsigned)LM_WARP : (unsigned)BLOCK;
  return lm_for_float(j->dtype, [&](auto stored) {
    return lm_launch(lm_conv_weight_sums<decltype(stored)>, blocks, threads, 0, stream, *j);
  });
}
