/* Winograd's minimal filtering F(4 x 4, 3 x 3) on channels-last images: the transforms and the
 * matrix products between them. Scheduling and scratch memory are winograd.c's.
 *
 * A tile is 4 x 4 pixels of the output. Its 6 x 6 inputs become 36 values a channel, and for each of
 * the 36 the convolution is a matrix product of tiles by channels. The 36 are planes `stride` floats
 * apart. Channels come in multiples of 16; matrices of weights are cut into panels of at most 64
 * columns, each stored [rows][width]. */
#ifndef LM_CPU_ISA_WINOGRAD_H
#define LM_CPU_ISA_WINOGRAD_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"

enum { LM_WINO_POINTS = 36, LM_WINO_PANEL = 64, LM_WINO_LANES = 16 };

/* Images [n, h, w, c] and how tiles lie over them: th x tw an image, tile (i, j) begins at pixel
 * (4 i - top, 4 j - left). Pixels outside the image count as zero. */
typedef struct lm_wino_images {
  int64_t h, w, c, th, tw, top, left;
} lm_wino_images;

struct lm_wino_loops {
  bool usable; /* else everything below is NULL */
  /* v[36][tile][c] = B' d B of the 6 x 6 pixels of tiles first .. last - 1. zeros: c of them. */
  void (*input)(const lm_wino_images *im, const float *x, int64_t first, int64_t last, float *v, int64_t stride,
                const float *zeros);
  /* z[36][tile][c] = A g A' of the 4 x 4 pixels of each tile: the gradient's side of the weights' gradient. */
  void (*grad)(const lm_wino_images *im, const float *g, int64_t first, int64_t last, float *z, int64_t stride,
               const float *zeros);
  /* y = A' m A + bias, 4 x 4 pixels from m[36][tile][c]. bias may be NULL; spare: c floats that take
   * what falls outside the image. */
  void (*output)(const lm_wino_images *im, const float *m, int64_t stride, int64_t first, int64_t last,
                 const float *bias, float *y, float *spare);
  /* u[36][c][width] = G w G' for output channels k0 .. k0 + width - 1 of w [k, c, 3, 3]; of the rows,
   * 16 from `row` on. */
  void (*weight)(const float *w, int64_t c, int64_t k0, int width, int64_t row, float *u, int64_t stride);
  /* The same for the gradient of the input, which convolves with w turned by 180 degrees and its
   * channels exchanged: u[36][k][width] for input channels c0 .. c0 + width - 1. */
  void (*weight_turned)(const float *w, int64_t c, int64_t c0, int width, int64_t row, float *u, int64_t stride);
  /* dw [k, c, 3, 3] = G' u G, for c0 .. c0 + 15 and k0 .. k0 + width - 1; u[36][c][width] is the sum
   * of `parts` buffers part_stride floats apart. */
  void (*weight_grad)(const float *u, int64_t stride, int parts, int64_t part_stride, int64_t c, int64_t c0, int64_t k0,
                      int width, float *dw);
  /* m [rows, width] = a [rows, depth] b [depth, width]; b dense, lda and ldm floats a row. */
  void (*multiply)(int64_t rows, int width, int64_t depth, const float *a, int64_t lda, const float *b, float *m,
                   int64_t ldm);
  /* u [rows, width] = a' b for a [depth, rows], b [depth, width], added to u if `add`; u dense. */
  void (*multiply_turned)(int64_t rows, int width, int64_t depth, const float *a, int64_t lda, const float *b,
                          int64_t ldb, float *u, bool add);
};

LM_ISA_DECLARE(struct lm_wino_loops, lm_wino_loops);

#endif
