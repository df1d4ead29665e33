#include "image/image.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

/* ---- orientations: how the picture as it is seen follows from the one that is stored, by turning over what is stored
 * first, then by swapping rows and columns */
typedef struct orientation_change {
  bool swap, flip_y, flip_x;
} orientation_change;

static orientation_change orientation_change_of(int orientation) {
  static const orientation_change turns[] = {{false, false, false}, {false, false, true}, {false, true, true},
                                             {false, true, false},  {true, false, false}, {true, true, false},
                                             {true, true, true},    {true, false, true}};
  return turns[orientation - 1];
}

/* ---- headers */

static const struct {
  const char *start, *name;
  size_t at, n;
} others[] = {{"GIF8", "GIF", 0, 4},   {"BM", "BMP", 0, 2},      {"WEBP", "WebP", 8, 4},
              {"II*\0", "TIFF", 0, 4}, {"MM\0*", "TIFF", 0, 4},  {"ftyp", "HEIF, AVIF or MP4", 4, 4},
              {"<svg", "SVG", 0, 4},   {"\0\0\1\0", "ICO", 0, 4}};

static lm_status find_format(lm_image *im) {
  static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, jpeg[] = {0xff, 0xd8, 0xff};
  if (im->nbytes >= sizeof png && memcmp(im->bytes, png, sizeof png) == 0) {
    im->format = LM_IMAGE_PNG;
    return LM_OK;
  }
  if (im->nbytes >= sizeof jpeg && memcmp(im->bytes, jpeg, sizeof jpeg) == 0) {
    im->format = LM_IMAGE_JPEG;
    return LM_OK;
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    size_t end = others[i].at + others[i].n;
    if (im->nbytes >= end && memcmp(im->bytes + others[i].at, others[i].start, others[i].n) == 0) {
      return lm_fail_in_file(LM_E_IO, im->name, "unsupported image format: %s; supported are JPEG and PNG",
                             others[i].name);
    }
  }
  if (im->nbytes == 0) return lm_fail_in_file(LM_E_IO, im->name, "the image is empty; supported are JPEG and PNG");
  char start[40] = "";
  for (size_t i = 0; i < 4 && i < im->nbytes; i++) {
    snprintf(start + strlen(start), sizeof start - strlen(start), " %02x", im->bytes[i]);
  }
  return lm_fail_in_file(LM_E_IO, im->name, "unknown image format: it starts with%s; supported are JPEG and PNG",
                         start);
}

lm_status lm_image_read_header(lm_image *im) {
  lm_image_header h = {0};
  NEED(find_format(im));
  NEED(im->format == LM_IMAGE_JPEG ? lm_jpeg_header(im, &h) : lm_png_header(im, &h));
  if (h.height > im->max_pixels / h.width) {
    return lm_fail_in_file(LM_E_IO, im->name, "the header states %lld x %lld pixels, more than max_pixels (%lld)",
                           (long long)h.width, (long long)h.height, (long long)im->max_pixels);
  }
  im->channels = h.channels;
  im->orientation = im->upright ? h.orientation : 1;
  bool swap = orientation_change_of(im->orientation).swap;
  im->height = swap ? h.width : h.height;
  im->width = swap ? h.height : h.width;
  return LM_OK;
}

/* ---- pixels */

static int channels_of(lm_image_mode mode, int unchanged) { return mode == LM_IMAGE_UNCHANGED ? unchanged : (int)mode; }

/* The part of a side from `from` on, `n` long, of `whole`, seen from the other end. */
static void reverse(int64_t *from, int64_t n, int64_t whole) { *from = whole - *from - n; }

/* Of the `n` pixels from `from` on of a side of `whole`, what they are at a scale: the first and the one after the
 * last. */
static void shrink(int64_t from, int64_t n, int64_t whole, int scale, int64_t *first, int64_t *end) {
  *first = (from + scale / 2) / scale;
  *end = from + n == whole ? lm_ceil_div(whole, scale) : (from + n + scale / 2) / scale;
}

lm_status lm_image_decode(const lm_image *im, lm_image_mode mode, const lm_image_crop *crop, const int64_t *at_least,
                          lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *t = NULL;
  lm_image_crop all = {0, 0, im->height, im->width}, part = crop ? *crop : all;
  if (part.top < 0 || part.left < 0 || part.height < 1 || part.width < 1 || part.height > im->height ||
      part.width > im->width || part.top > im->height - part.height || part.left > im->width - part.width) {
    return lm_fail_in_file(
        LM_E_INDEX, im->name,
        "crop {%lld, %lld, %lld, %lld} (top and left from 0, height, width) must be within the image "
        "of %lld x %lld",
        (long long)part.top, (long long)part.left, (long long)part.height, (long long)part.width, (long long)im->height,
        (long long)im->width);
  }
  orientation_change orientation_change = orientation_change_of(im->orientation);
  /* As it is stored. */
  int64_t height = orientation_change.swap ? im->width : im->height,
          width = orientation_change.swap ? im->height : im->width;
  int64_t y = orientation_change.swap ? part.left : part.top, rows = orientation_change.swap ? part.width : part.height;
  int64_t x = orientation_change.swap ? part.top : part.left,
          columns = orientation_change.swap ? part.height : part.width;
  if (orientation_change.flip_y) reverse(&y, rows, height);
  if (orientation_change.flip_x) reverse(&x, columns, width);
  lm_region r = {y, y + rows, x, x + columns};
  int scale = 1;
  if (at_least && im->format == LM_IMAGE_JPEG) {
    for (int s = 8; s > 1 && scale == 1; s /= 2) {
      lm_region smaller;
      shrink(y, rows, height, s, &smaller.y0, &smaller.y1);
      shrink(x, columns, width, s, &smaller.x0, &smaller.x1);
      int64_t h = smaller.y1 - smaller.y0, w = smaller.x1 - smaller.x0;
      if ((orientation_change.swap ? w : h) >= at_least[0] && (orientation_change.swap ? h : w) >= at_least[1]) {
        scale = s;
        r = smaller;
      }
    }
  }
  rows = r.y1 - r.y0;
  columns = r.x1 - r.x0;
  int64_t size[3] = {channels_of(mode, im->channels), orientation_change.swap ? columns : rows,
                     orientation_change.swap ? rows : columns};
  TRY(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 3, size, LM_CONTIGUOUS, &t));
  lm_planes to = {.first = (uint8_t *)t->data,
                  .plane = size[1] * size[2],
                  .row = orientation_change.swap ? 1 : size[2],
                  .column = orientation_change.swap ? size[2] : 1,
                  .channels = (int)size[0]};
  if (orientation_change.flip_y) {
    to.first += (rows - 1) * to.row;
    to.row = -to.row;
  }
  if (orientation_change.flip_x) {
    to.first += (columns - 1) * to.column;
    to.column = -to.column;
  }
  if (im->format == LM_IMAGE_PNG) {
    TRY(lm_png_decode(im, &r, &to));
  } else {
    bool alpha = to.channels % 2 == 0;
    if (alpha) memset(t->data + --to.channels * to.plane, 255, (size_t)to.plane);
    TRY(lm_jpeg_decode(im, scale, &r, &to));
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}

/* ---- encoding */

lm_status lm_pixels_check(const char *who, const lm_tensor *pixels, unsigned channels, int64_t most) {
  if (pixels->dtype != LM_U8) {
    return lm_remedy(lm_fail_dtype(who, "image", "uint8", lm_dtype_name(pixels->dtype)),
                     "convert one in [0, 1] with image:mul(255):round():to(\"uint8\")");
  }
  if (LM_DEVICE_KIND(pixels->device) != LM_CPU) {
    return lm_fail(LM_E_DEVICE, "%s: image must be on cpu, got %s; move it with :cpu()", who,
                   lm_device_name(pixels->device));
  }
  if (pixels->ndim != 3 || pixels->size[0] > 4 || !(channels >> pixels->size[0] & 1)) {
    const char *expected =
        channels == (1 << 1 | 1 << 3) ? "[C, H, W] with C of 1 or 3" : "[C, H, W] with C from 1 to 4";
    return lm_fail_shape(who, "image", expected, lm_shape_of(pixels));
  }
  for (int d = 1; d <= 2; d++) {
    if (pixels->size[d] < 1 || pixels->size[d] > most) {
      const char *expected = lm_text("[C, H, W] with H and W from 1 to %lld", (long long)most);
      return lm_fail_shape(who, "image", expected, lm_shape_of(pixels));
    }
  }
  return LM_OK;
}

static void free_bytes(void *data) { lm_free(data); }

lm_status lm_image_bytes(lm_bytes *b, lm_tensor **out) {
  if (b->failed) {
    lm_bytes_free(b);
    return lm_fail(LM_E_OOM, "out of memory: encoding an image");
  }
  int64_t n = (int64_t)b->n;
  char *data = b->data;
  *b = (lm_bytes){0};
  return lm_tensor_foreign(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &n, data, (size_t)n, free_bytes, data, out);
}
