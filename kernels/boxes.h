/* Boxes in images. Both functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include "bad_values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x: [n, c, h, w], boxes: [k, 5], y and indices: [k, c, rows, columns]; all contiguous, none empty. */
typedef struct lm_roi_job {
  int dtype, bad_kind; /* reported where an image is none */
  int64_t n, c, h, w, k, rows, columns;
  double scale;
  const void *x, *boxes;
  void *y;
  int64_t *indices;
  lm_bad bad;
} lm_roi_job;

int lm_k_roi_pool(const lm_roi_job *job, void *stream);
/* boxes: [n, 4], the best first; keep: [n], 0 or 1. Two launches compare `rows` boxes, a multiple of 64, with all that
 * follow; gone: 1 + rows words for each 64 boxes. */
int lm_k_nms(int dtype, const void *boxes, int64_t n, double threshold, int64_t rows, uint64_t *gone, uint8_t *keep,
             void *stream);

#ifdef __cplusplus
}
#endif
