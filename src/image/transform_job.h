/* Describes one run of an image transform; private to image/. */
#pragma once

#include "image/isa/loops.h"
#include "image/transform.h"

/* A batch of images. Strides are in bytes; a row's pixels are adjacent. */
typedef struct lm_planes {
  lm_dtype dtype;
  int64_t n, c, h, w;
  int64_t image, channel, row;
  char *data;
} lm_planes;

typedef struct lm_image_job {
  const char *name;
  int count; /* number of numbers */
  const double *v;
  lm_dtype stored; /* dtype of x's and y's elements; x.dtype selects loops that move elements of their size */
  lm_planes x, y;
} lm_image_job;

static inline char *lm_row_of(const lm_planes *p, int64_t image, int64_t channel, int64_t row) {
  return p->data + image * p->image + channel * p->channel + row * p->row;
}

enum { LM_MAX_CHANNELS = 4, LM_MAX_SIDE = 1 << 24 };

/* A transform. `plan` checks numbers and sets y's dtype and sizes, which start as x's; `run` fills y. */
typedef struct lm_image_kind {
  const char *name;
  int least, most;   /* bounds of the number of numbers */
  int mode, nearest; /* v[mode] <= nearest: only moves pixels, of any dtype; mode -1: changes colors, uint8 or floats */
  lm_status (*plan)(lm_image_job *job);
  lm_status (*run)(const lm_image_job *job);
} lm_image_kind;

/* Reads v[i] as an integer from `low` to `high`. */
lm_status lm_image_integer(const lm_image_job *job, int i, const char *what, int64_t low, int64_t high, int64_t *out);

/* Writes v as an element of the dtype; integers truncate and saturate. */
void lm_image_element(lm_dtype dtype, double v, void *out);

/* Runs `span` over all pixels, on the channels of an image `together` or one by one. Image i's (or plane i's) numbers
 * begin at v + i * step. `work` is in nanoseconds per value. */
lm_status lm_image_spans(const lm_image_job *job, lm_span span, bool together, const double *v, int64_t step,
                         double work);

#define PLAN(name) lm_status lm_plan_##name(lm_image_job *job)
#define RUN(name) lm_status lm_run_##name(const lm_image_job *job)
#define KIND(name) \
  PLAN(name);      \
  RUN(name)
KIND(resize);
KIND(affine);
KIND(perspective);
KIND(pad);
KIND(flip);
KIND(rotate90);
RUN(brightness);
RUN(contrast);
RUN(saturation);
RUN(hue);
RUN(gamma);
RUN(sharpness);
KIND(grayscale);
RUN(invert);
KIND(posterize);
KIND(solarize);
RUN(autocontrast);
KIND(equalize);
KIND(blur);
KIND(normalize);
KIND(convert);
PLAN(colors);  /* 1 or 3 channels */
PLAN(nothing); /* any image */
#undef KIND
#undef PLAN
#undef RUN
