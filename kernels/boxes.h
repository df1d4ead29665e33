/* Pools and suppresses boxes in images. Both functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include "bad_values.h"
#include "c_linkage.h"

/* lm_k_roi_pool's arguments. x: [n, c, h, w], boxes: [k, 5], y, indices: [k, c, rows, columns]; dense, none empty. */
typedef struct lm_roi_job {
  int dtype, bad_kind; /* bad_kind: reported for a box whose image index is out of range */
  int64_t n, c, h, w, k, rows, columns;
  double scale;
  const void *x, *boxes;
  void *y;
  int64_t *indices;
  lm_bad bad;
} lm_roi_job;

LM_C int lm_k_roi_pool(const lm_roi_job *job, void *stream);
/* Sets keep [n] to 1 for each of boxes [n, 4], the best first, that no better kept one overlaps, else to 0. Two
 * launches compare `rows` boxes, a multiple of 64, with all that follow; gone: 1 + rows words for each 64 boxes. */
LM_C int lm_k_nms(int dtype, const void *boxes, int64_t n, double threshold, int64_t rows, uint64_t *gone,
                  uint8_t *keep, void *stream);
