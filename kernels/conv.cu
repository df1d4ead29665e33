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
  const lm_conv_shape &s = j.shape;
  const T *x = (const T *)j.x, *weight = (const T *)j.weight;
  int64_t each = s.c / s.groups;
  for (int64_t i = lm_thread(); i < s.n * s.oh * s.ow * s.k; i += lm_threads()) {
    int64_t k = i % s.k, ow = i / s.k % s.ow, oh = i / s.k / s.ow % s.oh, n = i / s.k / s.ow / s.oh;
    int64_t first = k / (s.k / s.groups) * each;
    C sum = 0;
    for (int64_t a = 0; a < s.kh; a++) {
      int64_t h = oh * s.stride[0] - s.padding[0] + a * s.dilation[0];
      if (h < 0 || h >= s.h) continue;
      for (int64_t b = 0; b < s.kw; b++) {
        int64_t w = ow * s.stride[1] - s.padding[1] + b * s.dilation[1];
        if (w < 0 || w >= s.w) continue;
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

/* Returns the output coordinate at which the kernel's tap reads input coordinate `at`, or -1 if there is none. */
LM_DEVICE int64_t lm_conv_meets(int64_t at, int64_t tap, int64_t stride, int64_t padding, int64_t dilation,
                                int64_t size) {
  int64_t from = at + padding - tap * dilation;
  return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : -1;
}

/* Computes x: thread i sums the i-th element in the order n, h, w, c. */
template <class T>
LM_KERNEL void lm_conv_input_sums(lm_conv_sums j) {
  typedef lm_compute<T> C;
  const lm_conv_shape &s = j.shape;
  const T *y = (const T *)j.y, *weight = (const T *)j.weight;
  int64_t each = s.c / s.groups, outs = s.k / s.groups;
  for (int64_t i = lm_thread(); i < s.n * s.h * s.w * s.c; i += lm_threads()) {
    int64_t c = i % s.c, w = i / s.c % s.w, h = i / s.c / s.w % s.h, n = i / s.c / s.w / s.h;
    int64_t first = c / each * outs;
    C sum = 0;
    for (int64_t a = 0; a < s.kh; a++) {
      int64_t oh = lm_conv_meets(h, a, s.stride[0], s.padding[0], s.dilation[0], s.oh);
      if (oh < 0) continue;
      for (int64_t b = 0; b < s.kw; b++) {
        int64_t ow = lm_conv_meets(w, b, s.stride[1], s.padding[1], s.dilation[1], s.ow);
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
  const lm_conv_shape &s = j.shape;
  const T *x = (const T *)j.x, *y = (const T *)j.y;
  int64_t each = s.c / s.groups;
  for (int64_t i = blockIdx.x; i < s.k * each * s.kh * s.kw; i += gridDim.x) {
    int64_t b = i % s.kw, a = i / s.kw % s.kh, c = i / s.kw / s.kh % each, k = i / s.kw / s.kh / each;
    int64_t channel = k / (s.k / s.groups) * each + c;
    C sum = 0;
    for (int64_t p = threadIdx.x; p < s.n * s.oh * s.ow; p += blockDim.x) {
      int64_t ow = p % s.ow, oh = p / s.ow % s.oh, n = p / s.ow / s.oh;
      int64_t h = oh * s.stride[0] - s.padding[0] + a * s.dilation[0];
      int64_t w = ow * s.stride[1] - s.padding[1] + b * s.dilation[1];
      if (h < 0 || h >= s.h || w < 0 || w >= s.w) continue;
      sum += lm_get<C>(x[lm_conv_position(j.x_stride, n, channel, h, w)]) *
             lm_get<C>(y[lm_conv_position(j.y_stride, n, k, oh, ow)]);
    }
    sum = lm_block_reduce(sum, lm_add_of(), partial);
    if (threadIdx.x == 0) ((T *)j.weight)[lm_conv_position(j.w_stride, k, c, a, b)] = lm_put<T>(sum);
  }
}

int lm_k_conv(lm_conv_pass pass, const lm_conv_sums *j, void *stream) {
  const lm_conv_shape &s = j->shape;
  int64_t weights = s.k * (s.c / s.groups) * s.kh * s.kw;
  int64_t elements = pass == LM_CONV_FORWARD ? s.n * s.oh * s.ow * s.k : s.n * s.h * s.w * s.c;
  unsigned blocks = pass == LM_CONV_WEIGHT ? lm_blocks(weights, 1, MAX_BLOCKS) : lm_blocks(elements, BLOCK, MAX_BLOCKS);
  bool few = pass == LM_CONV_WEIGHT && s.n * s.oh * s.ow < 16 * BLOCK;
  return lm_for_float(j->dtype, [&](auto stored) {
    typedef decltype(stored) T;
    auto kernel = pass == LM_CONV_FORWARD ? lm_conv_forward_sums<T>
                  : pass == LM_CONV_INPUT ? lm_conv_input_sums<T>
                                          : lm_conv_weight_sums<T>;
    return lm_launch(kernel, blocks, few ? (unsigned)LM_WARP : (unsigned)BLOCK, 0, stream, *j);
  });
}
