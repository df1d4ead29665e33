/* grid_sample: a thread for each point and a few channels, neighbors along the points. */
#include "grid_sample.h"

#include "types.cuh"

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

enum { LM_GRID_BLOCK = 256, LM_GRID_CHANNELS = 8, LM_GRID_MAX = 64 };

/* Which image, point and first channel a thread has. */
struct lm_grid_position {
  int64_t p, c, image;
};
LM_DEVICE lm_grid_position lm_grid_position_of(const lm_grid_call &s, int64_t e, int64_t parts) {
  return {e % s.p, e / s.p % parts * LM_GRID_CHANNELS, e / s.p / parts};
}

/* The pixels that a point reads, and their weights, or their derivative along dim `by`; returns how many. */
template <class T, class A>
LM_DEVICE int lm_grid_table(const lm_grid_call &s, const T *point, int by, int32_t *at, A *w) {
  int32_t own_at[4];
  A own[4];
  int count = 1;
  at[0] = 0, w[0] = 1;
  for (int k = 0; k < s.dims; k++) {
    lm_grid_line line = s.line[k];
    line.order += k == by;
    lm_grid_taps_of(line, lm_get<A>(point[k]), own_at, own);
    for (int b = s.taps - 1; b >= 0; b--) {
      for (int a = 0; a < count; a++) {
        at[b * count + a] = at[a] < 0 || own_at[b] < 0 ? -1 : at[a] + own_at[b] * s.step[k];
        w[b * count + a] = w[a] * own[b];
      }
    }
    count *= s.taps;
  }
  return count;
}

/* Element (image, c, place) of a tensor with `total` positions a channel. */
LM_DEVICE int64_t lm_grid_element(const lm_grid_call &s, int64_t image, int64_t c, int64_t position, int64_t total) {
  return s.last ? (image * total + position) * s.c + c : (image * s.c + c) * total + position;
}

template <class T>
LM_KERNEL void lm_grid_forward_kernel(lm_grid_call s, int64_t count, int64_t parts) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of(s, e, parts);
    int taps = lm_grid_table<T, A>(s, (const T *)s.grid + (o.image * s.p + o.p) * s.dims, -1, at, w);
    for (int64_t c = o.c; c < s.c && c < o.c + LM_GRID_CHANNELS; c++) {
      A sum = 0;
      for (int j = 0; j < taps; j++) {
        A v = at[j] < 0 ? (A)0 : lm_get<A>(((const T *)s.x)[lm_grid_element(s, o.image, c, at[j], s.m)]);
        sum += w[j] * v;
      }
      ((T *)s.y)[lm_grid_element(s, o.image, c, o.p, s.p)] = lm_put<T>(sum);
    }
  }
}

/* sums were cleared. */
template <class T>
LM_KERNEL void lm_grid_input_kernel(lm_grid_call s, int64_t count, int64_t parts, lm_compute<T> *sums) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of(s, e, parts);
    int taps = lm_grid_table<T, A>(s, (const T *)s.grid + (o.image * s.p + o.p) * s.dims, -1, at, w);
    for (int64_t c = o.c; c < s.c && c < o.c + LM_GRID_CHANNELS; c++) {
      A g = lm_get<A>(((const T *)s.y)[lm_grid_element(s, o.image, c, o.p, s.p)]);
      for (int j = 0; j < taps; j++) {
        if (at[j] >= 0) atomicAdd(&sums[lm_grid_element(s, o.image, c, at[j], s.m)], w[j] * g);
      }
    }
  }
}

template <class T>
LM_KERNEL void lm_grid_round_kernel(const lm_compute<T> *sums, T *x, int64_t count) {
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) x[e] = lm_put<T>(sums[e]);
}

/* A thread for each point. */
template <class T>
LM_KERNEL void lm_grid_slopes_kernel(lm_grid_call s, int64_t count) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX], weighed[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    int64_t image = e / s.p, p = e % s.p;
    const T *point = (const T *)s.grid + e * s.dims;
    int taps = lm_grid_table<T, A>(s, point, -1, at, w);
    for (int j = 0; j < taps; j++) {
      weighed[j] = 0;
      for (int64_t c = 0; at[j] >= 0 && c < s.c; c++) {
        weighed[j] += lm_get<A>(((const T *)s.x)[lm_grid_element(s, image, c, at[j], s.m)]) *
                      lm_get<A>(((const T *)s.y)[lm_grid_element(s, image, c, p, s.p)]);
      }
    }
    for (int k = 0; k < s.dims; k++) {
      A sum = 0;
      lm_grid_table<T, A>(s, point, k, at, w);
      for (int j = 0; j < taps; j++) sum += weighed[j] * w[j];
      ((T *)s.slopes)[e * s.dims + k] = lm_put<T>(sum);
    }
  }
}

static unsigned blocks_for(int64_t count) { return lm_blocks(count, LM_GRID_BLOCK, INT32_MAX); }
static int64_t parts_of(const lm_grid_call *s) { return (s->c + LM_GRID_CHANNELS - 1) / LM_GRID_CHANNELS; }

extern "C" int lm_k_grid_forward(const lm_grid_call *call, void *stream) {
  int64_t parts = parts_of(call), count = call->n * parts * call->p;
  return lm_for_float(call->dtype, [=](auto t) {
    return lm_launch(lm_grid_forward_kernel<decltype(t)>, blocks_for(count), LM_GRID_BLOCK, 0, stream, *call, count,
                     parts);
  });
}

extern "C" int lm_k_grid_input(const lm_grid_call *call, float *sums, void *stream) {
  int64_t parts = parts_of(call), count = call->n * parts * call->p, all = call->n * call->c * call->m;
  return lm_for_float(call->dtype, [=](auto t) {
    typedef decltype(t) T;
    typedef lm_compute<T> A;
    A *sum = sizeof(T) < sizeof(A) ? (A *)sums : (A *)call->x;
    int error = (int)cudaMemsetAsync(sum, 0, (size_t)all * sizeof(A), (cudaStream_t)stream);
    if (error == 0)
      error = lm_launch(lm_grid_input_kernel<T>, blocks_for(count), LM_GRID_BLOCK, 0, stream, *call, count, parts, sum);
    if (error != 0 || sizeof(T) == sizeof(A)) return error;
    return lm_launch(lm_grid_round_kernel<T>, blocks_for(all), LM_GRID_BLOCK, 0, stream, sum, (T *)call->x, all);
  });
}

extern "C" int lm_k_grid_slopes(const lm_grid_call *call, void *stream) {
  int64_t count = call->n * call->p;
  return lm_for_float(call->dtype, [=](auto t) {
    return lm_launch(lm_grid_slopes_kernel<decltype(t)>, blocks_for(count), LM_GRID_BLOCK, 0, stream, *call, count);
  });
}
