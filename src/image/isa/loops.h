/* Declares loops over pixels for each image dtype. Files here are compiled as backend/cpu/isa.h describes. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* The weights of a resize: output o is the weighted sum of inputs first[o] to first[o] + count[o] - 1. Its weights
 * start at o * most: int16 numbers w * 2^bits for uint8, floats for the others. */
typedef struct lm_taps {
  int64_t out, most;
  int64_t *first, *count;
  void *weight;
  int bits;
} lm_taps;

/* Processes n pixels of `channels` channels each; v: numbers of the operation. */
typedef void (*lm_span)(const void *const *in, void *const *out, int channels, int64_t n, const double *v);

/* The source positions of a row: its pixel i comes from (x0 + i dx) / z, (y0 + i dy) / z with z = z0 + i dz, in pixels
 * of the image. 0 is the middle of the first pixel; where z varies, its edge. */
typedef struct lm_walk {
  double x0, dx, y0, dy, z0, dz;
} lm_walk;

typedef struct lm_warp_from {
  const char *data;
  int64_t channel, row; /* strides in bytes */
  int64_t width, height;
  int channels;
  bool filled;
  const double *fill;   /* one per channel */
  const void *elements; /* the fill numbers as pixels */
} lm_warp_from;

typedef struct lm_pixel_loops {
  /* dst row o (from `low` to `high` - 1) = sum of src rows by t, n columns; steps in elements. src is row `origin`. */
  void (*weigh)(void *dst, int64_t dstep, const void *src, int64_t sstep, int64_t origin, int64_t n, const lm_taps *t,
                int64_t low, int64_t high);
  /* dst[j][i] = src[i][j] for i < rows, j < columns; steps in elements */
  void (*transpose)(void *dst, int64_t dstep, const void *src, int64_t sstep, int64_t rows, int64_t columns);
  void (*nearest)(const lm_warp_from *from, const lm_walk *walk, int64_t n, void *const *out);
  void (*bilinear)(const lm_warp_from *from, const lm_walk *walk, int64_t n, void *const *out);
  /* Pointwise functions. bound: 255 for uint8, else 1 */
  lm_span blend;     /* v0 x + v1, from 0 to bound */
  lm_span stretch;   /* (x - v[2 c]) / v[2 c + 1], from 0 to bound */
  lm_span saturate;  /* v0 x + (1 - v0) gray */
  lm_span hue;       /* v0: fraction of a turn */
  lm_span gray;      /* 3 channels to 1; v0: number of outputs that receive it */
  lm_span invert;    /* bound - x */
  lm_span posterize; /* v0 bits */
  lm_span solarize;  /* bound - x from v0 on */
  lm_span gamma;     /* v1 x^v0; not uint8 */
  lm_span look_up;   /* v[x]; uint8 only */
  lm_span reverse;   /* the row reversed */
  lm_span normalize; /* x v[2 c] + v[2 c + 1], uint8 to float32; (x - v[2 c]) v[2 c + 1] for floats */
  lm_span convert;   /* uint8 to float32 or back: 0 to 255 as 0 to 1 */
  double (*gray_sum)(const void *const *in, int channels, int64_t n); /* sum of gray, truncated for uint8 */
  void (*extremes)(const void *in, int64_t n, double *least, double *largest);
  /* to[i] = sum over k < count of weight[k] * from[i + k]; floats for uint8 and float32, doubles for float64 */
  void (*slide)(void *to, const void *from, int64_t n, const void *weight, int64_t count);
  void (*widen)(void *to, const void *from, int64_t n);
  /* pixels = sum over k of weight[k] * rows[k] */
  void (*stack)(void *to, const void *const *rows, int64_t n, const void *weight, int64_t count);
  /* sharpens a row's inner pixels, 1 to n - 2, by v0; uses the rows above and below */
  void (*sharpen)(void *to, const void *const rows[3], int64_t n, double v0);
} lm_pixel_loops;

struct lm_image_loops {
  lm_pixel_loops of[LM_F64 + 1];
};

LM_ISA_DECLARE(struct lm_image_loops, lm_image_loops);
#define LM_PIXEL_LOOPS(dtype) (&LM_ISA_PICK(lm_image_loops)->of[dtype])
