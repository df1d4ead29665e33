/* Shares internals between the image codecs. */
#pragma once

#include "base/bytes.h"
#include "image/image.h"

/* A region to decode, in coordinates of the stored image. */
typedef struct lm_region {
  int64_t y0, y1, x0, x1;
  int64_t height, width; /* the complete image's; a JPEG's before scaling */
} lm_region;

/* The destination of decoded pixels: the byte of channel c of the pixel in row y, column x of the region is first[c *
 * plane + y * row + x * column]. The steps include the orientation. */
typedef struct lm_plane_target {
  uint8_t *first;
  int64_t plane, row, column;
  int channels;
} lm_plane_target;

/* Stores `rows` rows of `width` interleaved pixels as rows y and following. Each row starts row_bytes after the last; a
 * pixel has `pixel` bytes, of which the first to->channels are used. */
LM_API void lm_planes_put(const lm_plane_target *to, int64_t y, int64_t rows, int64_t width, const uint8_t *from,
                          size_t row_bytes, int pixel);
/* Stores the region from the rows of a complete RGBA image. Gray is ITU-R 601's. */
LM_API void lm_planes_put_rgba(const lm_plane_target *to, const lm_region *region, const uint8_t *pixels);
/* Copies row y of pixels [C, H, W] to out as interleaved pixels. */
LM_API void lm_planes_row(const lm_tensor *pixels, int64_t y, uint8_t *out);

/* An image file's header; sizes as stored. */
typedef struct lm_image_header {
  int64_t height, width;
  int channels, orientation;
} lm_image_header;

/* Returns the EXIF orientation in a TIFF structure: 1 to 8; 1 if there is none or it is invalid. */
LM_API int lm_exif_orientation(const uint8_t *tiff, size_t n);

/* The functions of an image format; NULL for one that it lacks. */
typedef struct lm_codec {
  lm_status (*header)(const lm_image *image, lm_image_header *out);
  /* Decodes the region; or, of JPEG, the region of the image scaled by 1/scale (1, 2, 4, 8). */
  lm_status (*decode)(const lm_image *image, const lm_region *region, const lm_plane_target *to);
  lm_status (*decode_scaled)(const lm_image *image, int scale, const lm_region *region, const lm_plane_target *to);
  lm_status (*decode_frames)(const lm_image *image, int channels, lm_tensor **out);
  lm_status (*encode)(const lm_tensor *pixels, int value, lm_tensor **out);
} lm_codec;

/* Defines the function that makes a file the plug-in luminary_image_FORMAT.so. Each is linked to its format's library
 * and loaded with the first such image: libtiff alone takes as long to load as a third of the core. */
#define LM_CODEC(...)                       \
  LM_API void lm_codec_of(lm_codec *codec); \
  void lm_codec_of(lm_codec *codec) { *codec = (lm_codec){__VA_ARGS__}; }

/* Returns an error unless pixels are uint8 [C, H, W] on the CPU, bit C of `channels` is set, and each side is from 1 to
 * `most`. */
LM_API lm_status lm_pixels_check(const char *who, const lm_tensor *pixels, unsigned channels, int64_t most);
/* Makes a tensor that owns the buffer's bytes and empties it; LM_E_OOM if the buffer has failed. */
LM_API lm_status lm_image_bytes(lm_bytes *b, lm_tensor **out);
