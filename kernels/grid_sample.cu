/* Computes grid_sample: a thread for each point and a few channels, neighbors along the points. */
#include "grid_sample.h"

#include "rounded_sums.cuh"

#define LM_TAPS_FN LM_DEVICE
#define LM_TAPS_FLOOR floor
#define LM_TAPS_ROUND rint
#define RN(name) name
#define R float
#include "grid_taps.h"
#undef R
#define R double
#include "grid_taps.h"
#undef R

enum { LM_GRID_BLOCK = 256, LM_GRID_CHANNELS = 8 };

/* A thread's point, first channel and image. */
struct lm_grid_position {
  int64_t p, c, image;
};
LM_DEVICE lm_grid_position lm_grid_position_of(const lm_grid_call &s, int64_t e, int64_t parts) {
  return {e % s.p, e / s.p % parts * LM_GRID_CHANNELS, e / s.p / parts};
}

/* A kernel's shape at compile time, so that tables of up to 16 pixels are registers, not local memory. */
template <int MODE, int DIMS>
struct lm_grid_shape {
  enum { TAPS = MODE == LM_GRID_NEAREST ? 1 : MODE == LM_GRID_BICUBIC ? 4 : 2 };
  enum { COUNT = TAPS * TAPS * (DIMS == 3 ? TAPS : 1) }; /* pixels that a point reads */
  enum { UNROLLED = COUNT > 16 ? 1 : COUNT };

  /* Computes the pixels that a point reads, and their weights, or their derivative along dim `by`. */
  template <class T, class A>
  LM_DEVICE static void table(const lm_grid_call &s, const T *point, int by, int32_t *at, A *w) {
    int32_t own_at[4];
    A own[4];
    int count = 1;
    at[0] = 0, w[0] = 1;
    LM_UNROLL
    for (int k = 0; k < DIMS; k++) {
      lm_grid_line line = s.line[k];
      line.mode = MODE;
      line.order += k == by;
      lm_grid_taps_of(line, lm_get<A>(point[k]), own_at, own);
      LM_UNROLL
      for (int b = TAPS - 1; b >= 0; b--) {
        LM_UNROLL
        for (int a = 0; a < count; a++) {
          at[b * count + a] = at[a] < 0 || own_at[b] < 0 ? -1 : at[a] + own_at[b] * s.step[k];
          w[b * count + a] = w[a] * own[b];
        }
      }
      count *= TAPS;
    }
  }
};

/* Returns the index of element (image, c, position) of a tensor with `total` positions in a channel. */
LM_DEVICE int64_t lm_grid_element(const lm_grid_call &s, int64_t image, int64_t c, int64_t position, int64_t total) {
  return s.last ? (image * total + position) * s.c + c : (image * s.c + c) * total + position;
}

template <class T, class S>
LM_KERNEL void lm_grid_forward_kernel(lm_grid_call s, int64_t count, int64_t parts) {
  typedef lm_compute<T> A;
  int32_t at[S::COUNT];
  A w[S::COUNT];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of(s, e, parts);
    S::table(s, (const T *)s.grid + (o.image * s.p + o.p) * s.dims, -1, at, w);
    for (int64_t c = o.c; c < s.c && c < o.c + LM_GRID_CHANNELS; c++) {
      A sum = 0;
      LM_UNROLL_BY(S::UNROLLED)
      for (int j = 0; j < S::COUNT; j++) {
        A v = at[j] < 0 ? (A)0 : lm_get<A>(((const T *)s.x)[lm_grid_element(s, o.image, c, at[j], s.m)]);
        sum += w[j] * v;
      }
      ((T *)s.y)[lm_grid_element(s, o.image, c, o.p, s.p)] = lm_put<T>(sum);
    }
  }
}

/* Computes the gradient of x by atomics; sums must be 0. */
template <class T, class S>
LM_KERNEL void lm_grid_input_kernel(lm_grid_call s, int64_t count, int64_t parts, lm_compute<T> *sums) {
  typedef lm_compute<T> A;
  int32_t at[S::COUNT];
  A w[S::COUNT];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of(s, e, parts);
    S::table(s, (const T *)s.grid + (o.image * s.p + o.p) * s.dims, -1, at, w);
    for (int64_t c = o.c; c < s.c && c < o.c + LM_GRID_CHANNELS; c++) {
      A g = lm_get<A>(((const T *)s.y)[lm_grid_element(s, o.image, c, o.p, s.p)]);
      LM_UNROLL_BY(S::UNROLLED)
      for (int j = 0; j < S::COUNT; j++) {
        if (at[j] >= 0) atomicAdd(&sums[lm_grid_element(s, o.image, c, at[j], s.m)], w[j] * g);
      }
    }
  }
}

/* Computes the gradient of the grid; a thread for each point. */
template <class T, class S>
LM_KERNEL void lm_grid_slopes_kernel(lm_grid_call s, int64_t count) {
  typedef lm_compute<T> A;
  int32_t at[S::COUNT];
  A w[S::COUNT], weighed[S::COUNT];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    int64_t image = e / s.p, p = e % s.p;
    const T *point = (const T *)s.grid + e * s.dims;
    S::table(s, point, -1, at, w);
    LM_UNROLL_BY(S::UNROLLED)
    for (int j = 0; j < S::COUNT; j++) {
      weighed[j] = 0;
      for (int64_t c = 0; at[j] >= 0 && c < s.c; c++) {
        weighed[j] += lm_get<A>(((const T *)s.x)[lm_grid_element(s, image, c, at[j], s.m)]) *
                      lm_get<A>(((const T *)s.y)[lm_grid_element(s, image, c, p, s.p)]);
      }
    }
    for (int k = 0; k < s.dims; k++) {
      A sum = 0;
      S::table(s, point, k, at, w);
      LM_UNROLL_BY(S::UNROLLED)
      for (int j = 0; j < S::COUNT; j++) sum += weighed[j] * w[j];
      ((T *)s.slopes)[e * s.dims + k] = lm_put<T>(sum);
    }
  }
}

/* Calls f(an element of the dtype, the kernel's shape). */
template <class F>
static int lm_grid_for(const lm_grid_call *s, F f) {
  return lm_for_float(s->dtype, [=](auto t) {
    if (s->dims == 3 && s->taps == 1) return f(t, lm_grid_shape<LM_GRID_NEAREST, 3>());
    if (s->dims == 3 && s->taps == 2) return f(t, lm_grid_shape<LM_GRID_BILINEAR, 3>());
    if (s->dims == 3) return f(t, lm_grid_shape<LM_GRID_BICUBIC, 3>());
    if (s->taps == 1) return f(t, lm_grid_shape<LM_GRID_NEAREST, 2>());
    if (s->taps == 2) return f(t, lm_grid_shape<LM_GRID_BILINEAR, 2>());
    return f(t, lm_grid_shape<LM_GRID_BICUBIC, 2>());
  });
}

static int64_t channel_parts(const lm_grid_call *s) { return (s->c + LM_GRID_CHANNELS - 1) / LM_GRID_CHANNELS; }

int lm_k_grid_forward(const lm_grid_call *call, void *stream) {
  int64_t parts = channel_parts(call), count = call->n * parts * call->p;
  return lm_grid_for(call, [=](auto t, auto shape) {
    return lm_launch_each(lm_grid_forward_kernel<decltype(t), decltype(shape)>, count, LM_GRID_BLOCK, stream, *call,
                          count, parts);
  });
}

int lm_k_grid_input(const lm_grid_call *call, float *sums, void *stream) {
  int64_t parts = channel_parts(call), count = call->n * parts * call->p, all = call->n * call->c * call->m;
  return lm_grid_for(call, [=](auto t, auto shape) {
    typedef decltype(t) T;
    return lm_sum_into<T>(call->x, sums, all, stream, [&](lm_compute<T> *sum) {
      return lm_launch_each(lm_grid_input_kernel<T, decltype(shape)>, count, LM_GRID_BLOCK, stream, *call, count, parts,
                            sum);
    });
  });
}

int lm_k_grid_slopes(const lm_grid_call *call, void *stream) {
  int64_t count = call->n * call->p;
  return lm_grid_for(call, [=](auto t, auto shape) {
    return lm_launch_each(lm_grid_slopes_kernel<decltype(t), decltype(shape)>, count, LM_GRID_BLOCK, stream, *call,
                          count);
  });
}
