/* Files of images to and from uint8 tensors [C, H, W] on the CPU: JPEG (libjpeg-turbo), PNG (libpng), BMP, and WebP,
 * GIF and TIFF, which a build may lack.
 *
 * Reentrant: any number of threads may read the same bytes. Nothing is allocated for pixels before the sizes in the
 * header are checked. */
#pragma once

#include "tensor/tensor.h"

typedef enum lm_image_mode {
  LM_IMAGE_UNCHANGED, /* what the file has; palettes and CMYK become RGB, transparency alpha */
  LM_IMAGE_GRAY,
  LM_IMAGE_GRAY_ALPHA,
  LM_IMAGE_RGB,
  LM_IMAGE_RGBA,
} lm_image_mode;

/* An image whose header is read. The caller sets the fields before `format`. */
typedef struct lm_image {
  const uint8_t *bytes; /* borrowed */
  size_t nbytes;
  const char *name;   /* what messages call it; borrowed */
  int64_t max_pixels; /* more is an error */
  bool upright;       /* as EXIF says it is to be seen; else as it is stored */
  bool allow_corrupt; /* of a JPEG whose data is damaged, what libjpeg makes of it; else LM_E_IO */
  const struct lm_image_format *format;
  const char *format_name; /* "jpeg", ... */
  int64_t height, width;   /* after EXIF's orientation, if upright */
  int channels;            /* of LM_IMAGE_UNCHANGED: 1 to 4 */
  int orientation;         /* EXIF's, 1 to 8; 1 if not upright */
} lm_image;

/* Pixels of an image: top, left, height and width in the whole, as it is seen. */
typedef struct lm_image_crop {
  int64_t top, left, height, width;
} lm_image_crop;

/* LM_E_IO names the image and says what is wrong with it. */
LM_API lm_status lm_image_read_header(lm_image *image);

/* crop: NULL for all. What lies behind it in the file is not read, so neither checked. Its pixels are those of the
 * whole. at_least: NULL, or a height and a width: a JPEG may then be decoded at a half, a quarter or an eighth of its
 * size, of which the crop has at least that many pixels; its edges are rounded to whole ones. *out is [C, H, W]. */
LM_API lm_status lm_image_decode(const lm_image *image, lm_image_mode mode, const lm_image_crop *crop,
                                 const int64_t *at_least, lm_tensor **out);

/* Pixels of all frames of a GIF, at most max_pixels of them, one frame after the other with its 1 to 4 channels. A
 * build without giflib has NULL. */
LM_API __attribute__((weak)) lm_status lm_image_decode_gif(const lm_image *image, int channels, lm_tensor **out);

/* pixels: [C, H, W] uint8 on the CPU, any strides. *out: a uint8 tensor [n], a file's bytes.
 * C is 1 or 3; quality from 1 to 100; chroma is halved both ways, as libjpeg does by itself. */
LM_API lm_status lm_image_encode_jpeg(const lm_tensor *pixels, int quality, lm_tensor **out);
/* C is 1 (gray), 2 (with alpha), 3 (RGB) or 4; level from 0 to 9, zlib's. */
LM_API lm_status lm_image_encode_png(const lm_tensor *pixels, int level, lm_tensor **out);
/* C is 3 or 4; quality from 0 to 100, or 101 for a file without loss. A build without libwebp has NULL. */
LM_API __attribute__((weak)) lm_status lm_image_encode_webp(const lm_tensor *pixels, int quality, lm_tensor **out);
