/* Computes the pixels that grid_sample reads along one dim, and their weights, alike on every device. No guard: each
 * file includes this for each element type with R, the real type, RN(name), a function's name for that type, and
 * LM_TAPS_FN, a function's qualifiers; without R it defines the types alone. Coordinates and their reflections are
 * those of PyTorch's GridSamplerKernel.cpp. */
#ifndef LM_KERNELS_GRID_LINE
#define LM_KERNELS_GRID_LINE

#include <stdbool.h>
#include <stdint.h>

enum { LM_GRID_BILINEAR, LM_GRID_NEAREST, LM_GRID_BICUBIC };
enum { LM_GRID_ZEROS, LM_GRID_BORDER, LM_GRID_REFLECTION };

/* A dim of `size` pixels. order: order of the derivative by the coordinate, 0 to 3. */
typedef struct lm_grid_line {
  int32_t size;
  int mode, padding, align, order;
} lm_grid_line;

/* A call of grid_sample or a gradient of it. x: [n, c, m], y: [n, c, p] with p the points, both contiguous, or with
 * `last` [n, m, c] and [n, p, c]; grid [n, p, dims], contiguous. m counts pixels through all dims. None is empty. */
typedef struct lm_grid_call {
  int dtype, dims, taps, last; /* dims: 2 or 3; taps: pixels that a point reads along each */
  int64_t n, c, m, p;
  lm_grid_line line[3];        /* dims in the order of a point's coordinates: columns first */
  int32_t step[3];             /* pixels of m from one pixel to the next along each line */
  void *x, *y, *grid, *slopes; /* slopes: the grid's gradient. One of x, y and slopes is computed */
} lm_grid_call;

static inline int lm_grid_taps(int mode) { return mode == LM_GRID_NEAREST ? 1 : mode == LM_GRID_BICUBIC ? 4 : 2; }

#endif

#ifdef R

/* Returns a coordinate in pixels, padded into the line; *slope becomes the derivative. NaN becomes 0, as in PyTorch. */
LM_TAPS_FN R RN(lm_grid_padded)(lm_grid_line l, R at, R *slope) {
  R last = (R)(l.size - 1), sign = 1;
  if (l.padding == LM_GRID_ZEROS) {
    *slope = 1;
    return at;
  }
  if (l.padding == LM_GRID_REFLECTION) {
    R low = l.align ? (R)0 : (R)-0.5, span = l.align ? 2 * last : 2 * (R)l.size;
    R from = at - low, way = from < 0 ? -from : from;
    R extra = span > 0 ? way - RN(LM_TAPS_FLOOR)(way / span) * span : (R)0;
    sign = from < 0 ? (R)-1 : (R)1;
    sign = extra > span - extra ? -sign : sign;
    at = (extra > span - extra ? span - extra : extra) + low;
  }
  *slope = at > 0 && at < last ? sign : (R)0;
  at = at > 0 ? at : (R)0;
  return at < last ? at : last;
}

/* Returns a pixel's index from 0, or -1 if it lies outside the line. Beyond 2^24 a reflected coordinate may lie between
 * pixels: its fraction is cut off, as in PyTorch. */
LM_TAPS_FN int32_t RN(lm_grid_pixel)(lm_grid_line l, R at) {
  bool near = at >= 0 && at < (R)2147483520.0;
  int32_t pixel = near ? (int32_t)at : -1;
  return pixel < l.size ? pixel : -1;
}

/* Returns u, -1 to 1 over the line, in pixels; *scale becomes the derivative. */
LM_TAPS_FN R RN(lm_grid_unnormalized)(lm_grid_line l, R u, R *scale) {
  *scale = (l.align ? (R)(l.size - 1) : (R)l.size) / 2;
  return l.align ? (u + 1) * *scale : (u + 1) * *scale - (R)0.5;
}

/* Computes cubic convolution's weights (Keys 1981, a = -0.75) of pixels t + 1, t, 1 - t, 2 - t away, or derivatives. */
LM_TAPS_FN void RN(lm_grid_cubic)(int order, R t, R w[4]) {
  const R a = (R)-0.75;
  R far0 = t + 1, near1 = 1 - t, far1 = 2 - t;
  if (order == 0) {
    w[0] = (((far0 - 5) * far0 + 8) * far0 - 4) * a;
    w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    w[2] = ((a + 2) * near1 - (a + 3)) * near1 * near1 + 1;
    w[3] = (((far1 - 5) * far1 + 8) * far1 - 4) * a;
  } else if (order == 1) {
    w[0] = ((3 * far0 - 10) * far0 + 8) * a;
    w[1] = (3 * (a + 2) * t - 2 * (a + 3)) * t;
    w[2] = -(3 * (a + 2) * near1 - 2 * (a + 3)) * near1;
    w[3] = -((3 * far1 - 10) * far1 + 8) * a;
  } else if (order == 2) {
    w[0] = (6 * far0 - 10) * a;
    w[1] = 6 * (a + 2) * t - 2 * (a + 3);
    w[2] = 6 * (a + 2) * near1 - 2 * (a + 3);
    w[3] = (6 * far1 - 10) * a;
  } else {
    w[0] = 6 * a;
    w[1] = 6 * (a + 2);
    w[2] = -w[1];
    w[3] = -w[0];
  }
}

/* Computes coordinate u's pixels at[taps] and their weights w[taps], or the weights' derivative by u. */
LM_TAPS_FN void RN(lm_grid_taps_of)(lm_grid_line l, R u, int32_t at[4], R w[4]) {
  R scale, slope, position = RN(lm_grid_unnormalized)(l, u, &scale);
  if (l.mode == LM_GRID_BICUBIC) {
    R first = RN(LM_TAPS_FLOOR)(position), factor = 1;
    for (int k = 0; k < l.order; k++) factor *= scale;
    RN(lm_grid_cubic)(l.order, position - first, w);
    for (int k = 0; k < 4; k++) {
      at[k] = RN(lm_grid_pixel)(l, RN(lm_grid_padded)(l, first + (R)(k - 1), &slope));
      w[k] *= factor;
    }
    return;
  }
  position = RN(lm_grid_padded)(l, position, &slope);
  if (l.mode == LM_GRID_NEAREST) {
    at[0] = RN(lm_grid_pixel)(l, RN(LM_TAPS_ROUND)(position));
    w[0] = l.order == 0 ? (R)1 : (R)0;
    return;
  }
  R first = RN(LM_TAPS_FLOOR)(position), part = position - first;
  at[0] = RN(lm_grid_pixel)(l, first);
  at[1] = RN(lm_grid_pixel)(l, first + 1);
  w[0] = l.order == 0 ? 1 - part : l.order == 1 ? -scale * slope : (R)0;
  w[1] = l.order == 0 ? part : l.order == 1 ? scale * slope : (R)0;
}

#endif
