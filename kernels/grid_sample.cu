/* grid_sample: a thread for each point and a few channels, neighbors along the points. */
#include "grid_sample.h"

#include "merged_dims.cuh"
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

/* Elements [n, parts, p], `parts` of the channels; or [n, p]. */
struct lm_grid_count {
  int64_t all, parts;
  lm_divider by_parts, by_p;
};

/* Which image, point and first channel a thread has. */
struct lm_grid_position {
  int64_t p, c, image;
};
template <bool WIDE>
LM_DEVICE lm_grid_position lm_grid_position_of(const lm_grid_call &s, int64_t e, const lm_grid_count &count) {
  lm_grid_position o;
  int64_t part;
  o.image = lm_split<WIDE>(lm_split<WIDE>(e, s.p, count.by_p, &o.p), count.parts, count.by_parts, &part);
  o.c = part * LM_GRID_CHANNELS;
  return o;
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

template <class T, bool WIDE>
LM_KERNEL void lm_grid_forward_kernel(lm_grid_call s, lm_grid_count count) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count.all; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of<WIDE>(s, e, count);
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
template <class T, bool WIDE>
LM_KERNEL void lm_grid_input_kernel(lm_grid_call s, lm_grid_count count, lm_compute<T> *sums) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count.all; e += lm_threads()) {
    lm_grid_position o = lm_grid_position_of<WIDE>(s, e, count);
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
template <class T, bool WIDE>
LM_KERNEL void lm_grid_slopes_kernel(lm_grid_call s, lm_grid_count count) {
  typedef lm_compute<T> A;
  int32_t at[LM_GRID_MAX];
  A w[LM_GRID_MAX], weighed[LM_GRID_MAX];
  for (int64_t e = lm_thread(); e < count.all; e += lm_threads()) {
    int64_t p, image = lm_split<WIDE>(e, s.p, count.by_p, &p);
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

/* The narrow kernel for fewer elements than LM_NARROW, else the wide one. */
template <class... P, class... A>
static int launch(void (*narrow)(lm_grid_call, lm_grid_count, P...), void (*wide)(lm_grid_call, lm_grid_count, P...),
                  void *stream, const lm_grid_call *call, int64_t parts, A... more) {
  lm_grid_count count = {call->n * parts * call->p, parts, lm_split_divider(parts), lm_split_divider(call->p)};
  return lm_launch(count.all < LM_NARROW ? narrow : wide, blocks_for(count.all), LM_GRID_BLOCK, 0, stream, *call, count,
                   more...);
}

extern "C" int lm_k_grid_forward(const lm_grid_call *call, void *stream) {
  return lm_for_float(call->dtype, [=](auto t) {
    typedef decltype(t) T;
    return launch(lm_grid_forward_kernel<T, false>, lm_grid_forward_kernel<T, true>, stream, call, parts_of(call));
  });
}

extern "C" int lm_k_grid_input(const lm_grid_call *call, float *sums, void *stream) {
  int64_t all = call->n * call->c * call->m;
  return lm_for_float(call->dtype, [=](auto t) {
    typedef decltype(t) T;
    typedef lm_compute<T> A;
    A *sum = sizeof(T) < sizeof(A) ? (A *)sums : (A *)call->x;
    int error = (int)cudaMemsetAsync(sum, 0, (size_t)all * sizeof(A), (cudaStream_t)stream);
    if (error == 0)
      error = launch(lm_grid_input_kernel<T, false>, lm_grid_input_kernel<T, true>, stream, call, parts_of(call), sum);
    if (error != 0 || sizeof(T) == sizeof(A)) return error;
    return lm_launch(lm_grid_round_kernel<T>, blocks_for(all), LM_GRID_BLOCK, 0, stream, sum, (T *)call->x, all);
  });
}

extern "C" int lm_k_grid_slopes(const lm_grid_call *call, void *stream) {
  return lm_for_float(call->dtype, [=](auto t) {
    typedef decltype(t) T;
    return launch(lm_grid_slopes_kernel<T, false>, lm_grid_slopes_kernel<T, true>, stream, call, 1);
  });
}
