/* Within image/: one transform's run. */
#pragma once

#include "image/isa/loops.h"
#include "image/transform.h"

/* A batch of images. Strides are in bytes; pixels of a row lie side by side. */
typedef struct lm_planes {
  lm_dtype dtype;
  int64_t n, c, h, w;
  int64_t image, channel, row;
  char *data;
} lm_planes;

typedef struct lm_image_job {
  const char *name;
  int count; /* of numbers */
  const double *v;
  lm_dtype stored; /* of x's and y's elements; x.dtype names loops that move elements of their size */
  lm_planes x, y;
} lm_image_job;

static inline char *lm_row_of(const lm_planes *p, int64_t image, int64_t channel, int64_t row) {
  return p->data + image * p->image + channel * p->channel + row * p->row;
}

enum { LM_MAX_CHANNELS = 4, LM_MAX_SIDE = 1 << 24 };

/* Each kind: `plan` checks numbers and sets y's dtype and sizes, which are x's at first; `run` fills y. */
typedef struct lm_image_kind {
  const char *name;
  int least, most;   /* numbers */
  int mode, nearest; /* v[mode] up to `nearest`: pixels of any dtype are moved as they are; -1: changes colors, of uint8
                      * and floats */
  lm_status (*plan)(lm_image_job *job);
  lm_status (*run)(const lm_image_job *job);
} lm_image_kind;

/* v[i] as a whole number from `low` to `high`. */
lm_status lm_image_whole(const lm_image_job *job, int i, const char *what, int64_t low, int64_t high, int64_t *out);

/* Writes v as an element of the dtype; integers take the nearest one towards 0 that they hold. */
void lm_image_element(lm_dtype dtype, double v, void *out);

/* Runs `span` over all pixels, the channels of each image together, or each by itself. Image i's numbers begin at
 * v + i * step. work: nanoseconds a value */
void lm_image_spans(const lm_image_job *job, lm_span span, bool together, const double *v, int64_t step, double work);

#define KIND(name)                             \
  lm_status lm_plan_##name(lm_image_job *job); \
  lm_status lm_run_##name(const lm_image_job *job)
KIND(resize);
KIND(affine);
KIND(perspective);
KIND(pad);
KIND(flip);
KIND(rotate90);
KIND(brightness);
KIND(contrast);
KIND(saturation);
KIND(hue);
KIND(gamma);
KIND(sharpness);
KIND(grayscale);
KIND(invert);
KIND(posterize);
KIND(solarize);
KIND(autocontrast);
KIND(equalize);
KIND(blur);
KIND(normalize);
KIND(convert);
#undef KIND
