/* Declares Winograd's minimal filtering F(4 x 4, 3 x 3) on channels-last images: the transforms and the matrix products
 * between them. conv/winograd.c schedules them and has their scratch memory.
 *
 * A tile is 4 x 4 pixels of the output. Its 6 x 6 inputs become 36 values a channel, and for each of the 36 the
 * convolution is a matrix product of tiles by channels. The 36 are planes `stride` floats apart. Channels come in
 * multiples of 16; a matrix of weights is cut into panels of `panel` columns, the last one narrower, each stored
 * [rows][width]. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"

enum { LM_WINO_POINTS = 36, LM_WINO_CHANNELS = 16 };

/* Images [n, h, w, c] and the tiles that cover them: th x tw an image; tile (i, j) begins at pixel (4 i - top, 4 j -
 * left). Pixels outside the image count as zero. */
typedef struct lm_wino_images {
  int64_t h, w, c, th, tw, top, left;
} lm_wino_images;

struct lm_wino_loops {
  int panel;
  /* Computes v[36][tile][channels] = B' d B of the 6 x 6 pixels of tiles first .. last - 1, for `channels` channels
   * from x's first on. zeros: `channels` zeros. */
  void (*input)(const lm_wino_images *im, const float *x, int64_t channels, int64_t first, int64_t last, float *v,
                int64_t stride, const float *zeros);
  /* Computes z[36][tile][channels] = A g A' of the 4 x 4 pixels of each tile: the output gradient's side of the
   * weights' gradient. */
  void (*grad)(const lm_wino_images *im, const float *g, int64_t channels, int64_t first, int64_t last, float *z,
               int64_t stride, const float *zeros);
  /* Computes y = A' m A + bias, 4 x 4 pixels from m[36][tile][c]. bias may be NULL; spare: c floats that take the
   * pixels outside the image. */
  void (*output)(const lm_wino_images *im, const float *m, int64_t stride, int64_t first, int64_t last,
                 const float *bias, float *y, float *spare);
  /* Computes 16 rows, from `row` on, of a panel u[36][c][width] = G w G' for output channels k0 .. k0 + width - 1 of w
   * [k, c, 3, 3]. */
  void (*weight)(const float *w, int64_t c, int64_t k0, int width, int64_t row, float *u, int64_t stride);
  /* Computes a panel's rows for the gradient of the input, which convolves with w rotated by 180 degrees and its
   * channels exchanged: u[36][k][width] for input channels c0 .. c0 + width - 1. */
  void (*weight_rotated)(const float *w, int64_t c, int64_t c0, int width, int64_t row, float *u, int64_t stride);
  /* Computes dw [k, c, 3, 3] = G' u G, for input channels c0 .. c0 + 15 and output channels k0 .. k0 + width - 1.
   * u[36][16][width] is the sum of `parts` buffers part_stride floats apart. */
  void (*weight_grad)(const float *u, int64_t stride, int64_t parts, int64_t part_stride, int64_t c, int64_t c0,
                      int64_t k0, int width, float *dw);
  /* Computes m [rows, columns] = a [rows, depth] b [depth, columns], b in panels; lda and ldm are floats a row. */
  void (*multiply)(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const float *b, float *m,
                   int64_t ldm);
  /* Computes u [rows, columns] = a' b (+ u if `add`), dense a [depth, rows] and b [depth, columns]; u in panels. */
  void (*multiply_transposed)(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, float *u,
                              bool add);
};

LM_ISA_DECLARE(struct lm_wino_loops, lm_wino_loops);
