/* Between the files of this folder. */
#pragma once

#include "base/bytes.h"
#include "image/image.h"

/* A part of the image as it is stored. */
typedef struct lm_region {
  int64_t y0, y1, x0, x1;
  int64_t height, width; /* of the whole; of a JPEG before it is scaled */
} lm_region;

/* Where decoded pixels go: the byte of channel c of the pixel in row y, column x of what is decoded is
 * first[c * plane + y * row + x * column]. Orientations are in the steps. */
typedef struct lm_planes {
  uint8_t *first;
  int64_t plane, row, column;
  int channels;
} lm_planes;

/* `rows` rows of `width` interleaved pixels, each `row_bytes` after the last, each pixel of `pixel` bytes, of which the
 * first to->channels count. They are rows y and on. */
void lm_planes_put(const lm_planes *to, int64_t y, int64_t rows, int64_t width, const uint8_t *from, size_t row_bytes,
                   int pixel);
/* The region of the rows of a whole image in RGBA. Gray is ITU-R 601's. */
void lm_planes_put_rgba(const lm_planes *to, const lm_region *region, const uint8_t *pixels);
/* Row y of pixels [C, H, W] as interleaved pixels. */
void lm_planes_row(const lm_tensor *pixels, int64_t y, uint8_t *out);

/* What a header says; sizes as stored. */
typedef struct lm_image_header {
  int64_t height, width;
  int channels, orientation;
} lm_image_header;

/* EXIF's orientation in a TIFF structure: 1 to 8; 1 where there is none that makes sense. */
int lm_exif_orientation(const uint8_t *tiff, size_t n);

lm_status lm_jpeg_header(const lm_image *image, lm_image_header *out);
/* The image scaled by 1/scale (1, 2, 4, 8), and of it the region. */
lm_status lm_jpeg_decode(const lm_image *image, int scale, const lm_region *region, const lm_planes *to);
/* NULL for a format that is left out. */
#define CODEC(format)                                                                                \
  __attribute__((weak)) lm_status lm_##format##_header(const lm_image *image, lm_image_header *out); \
  __attribute__((weak))                                                                              \
  lm_status lm_##format##_decode(const lm_image *image, const lm_region *region, const lm_planes *to)
CODEC(png);
CODEC(bmp);
CODEC(webp);
CODEC(gif);
CODEC(tiff);
#undef CODEC

/* LM_E_… unless pixels are uint8 [C, H, W] on the CPU, of which bit C of `channels` is set and no side is 0 or longer
 * than `most`. */
lm_status lm_pixels_check(const char *who, const lm_tensor *pixels, unsigned channels, int64_t most);
/* A tensor that takes over the bytes; the status is LM_E_OOM if the buffer has failed. */
lm_status lm_image_bytes(lm_bytes *b, lm_tensor **out);
