/* Decodes and encodes image files as uint8 tensors [C, H, W] on the CPU: JPEG (libjpeg-turbo), PNG (libpng), BMP, and
 * WebP, GIF and TIFF, which a build may lack.
 *
 * Reentrant: any number of threads may read the same bytes. Nothing is allocated for pixels before the sizes in the
 * header are checked. */
#pragma once

#include "tensor/tensor.h"

typedef enum lm_image_mode {
  LM_IMAGE_UNCHANGED, /* the file's channels; palettes and CMYK become RGB, transparency alpha */
  LM_IMAGE_GRAY,
  LM_IMAGE_GRAY_ALPHA,
  LM_IMAGE_RGB,
  LM_IMAGE_RGBA,
} lm_image_mode;

/* An image to decode. The caller sets the fields before `format`; lm_image_read_header sets the others. */
typedef struct lm_image {
  const uint8_t *bytes; /* borrowed */
  size_t nbytes;
  const char *name;   /* name in messages; borrowed */
  int64_t max_pixels; /* limit on height * width; more is an error */
  bool upright;       /* applies EXIF's orientation; else pixels as stored */
  bool allow_corrupt; /* decodes damaged JPEG data as libjpeg can; else they are LM_E_IO */
  const struct lm_codec *codec;
  const char *format_name; /* "jpeg", ... */
  int64_t height, width;   /* after EXIF's orientation, if upright */
  int channels;            /* number for LM_IMAGE_UNCHANGED: 1 to 4 */
  int orientation;         /* EXIF's, 1 to 8; 1 if not upright */
} lm_image;

/* Endings of the names of files that are decoded, separated by spaces. */
LM_API extern const char lm_image_endings[];

/* A rectangle of the upright image. */
typedef struct lm_image_crop {
  int64_t top, left, height, width;
} lm_image_crop;

/* Reads the header and fills the image's fields. LM_E_IO names the image and its defect. */
LM_API lm_status lm_image_read_header(lm_image *image);

/* Decodes the image, or a crop of it (NULL: all), to *out [C, H, W]. Bytes of the file behind the crop are not read,
 * nor checked. at_least: NULL, or a height and a width. A JPEG may then be decoded at 1/2, 1/4 or 1/8 of its size if
 * the crop, its edges rounded to pixels, still has that size. */
LM_API lm_status lm_image_decode(const lm_image *image, lm_image_mode mode, const lm_image_crop *crop,
                                 const int64_t *at_least, lm_tensor **out);

/* Decodes all frames of a GIF, at most max_pixels pixels, one after the other, each with 1 to 4 channels. */
LM_API lm_status lm_image_decode_gif(const lm_image *image, int channels, lm_tensor **out);

/* Encodes pixels, uint8 [C, H, W] on the CPU with any strides, as a file: *out is uint8 [n]. "jpeg": C is 1 or 3, value
 * the quality from 1 to 100, and chroma is halved both ways, libjpeg's default. "png": C is 1 (gray), 2 (with alpha), 3
 * (RGB) or 4, value zlib's level from 0 to 9. "webp": C is 3 or 4, value the quality from 0 to 100, or 101 for
 * lossless. */
LM_API lm_status lm_image_encode(const char *format, const lm_tensor *pixels, int value, lm_tensor **out);
