#include "image/image.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "base/plugin.h"
#include "image/codec.h"

/* ---- orientations: the upright picture results from the stored one by mirroring it first, then swapping rows and
 * columns */
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

typedef struct format {
  const char *name, *title, *start;
  size_t at, n;        /* offset and length of `start` in a file */
  const char *library; /* library of the format's plug-in */
  const lm_codec *own; /* the functions of one that no library reads; neither: it is not read at all */
  _Atomic bool loaded;
  lm_codec codec;
} format;

extern const lm_codec lm_bmp_codec;
static format formats[] = {
    {"jpeg", "JPEG", "\xff\xd8\xff", 0, 3, "libjpeg", NULL, false, {0}},
    {"png", "PNG", "\x89PNG\r\n\x1a\n", 0, 8, "libpng", NULL, false, {0}},
    {"webp", "WebP", "WEBP", 8, 4, "libwebp", NULL, false, {0}},
    {"gif", "GIF", "GIF8", 0, 4, "giflib", NULL, false, {0}},
    {"bmp", "BMP", "BM", 0, 2, NULL, &lm_bmp_codec, false, {0}},
    {"tiff", "TIFF", "II*\0", 0, 4, "libtiff", NULL, false, {0}},
    {"tiff", "TIFF", "MM\0*", 0, 4, "libtiff", NULL, false, {0}},
    {NULL, "HEIF, AVIF or MP4", "ftyp", 4, 4, NULL, NULL, false, {0}},
    {NULL, "SVG", "<svg", 0, 4, NULL, NULL, false, {0}},
    {NULL, "ICO", "\0\0\1\0", 0, 4, NULL, NULL, false, {0}},
};
#define SUPPORTED "supported are JPEG, PNG, WebP, GIF, BMP and TIFF"
const char lm_image_endings[] = "jpg jpeg png bmp webp tif tiff gif";

static lm_status load_image_plugin(void *arg) {
  static const lm_plugin_family family = {"image", LM_VAR_BACKEND_PATH, "lm_codec_of", "image format", 0};
  format *f = arg;
  void (*codec_of)(lm_codec *) = NULL;
  char path[LM_PLUGIN_PATH];
  NEED(lm_plugin_load(&family, f->name, (void **)&codec_of, path));
  if (!codec_of)
    return lm_fail(LM_E_IO, "this build was made without %s; install its headers and build again", f->library);
  codec_of(&f->codec);
  return LM_OK;
}

static lm_status find_format(lm_image *im) {
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    format *f = &formats[i];
    im->codec = f->own ? f->own : &f->codec;
    im->format_name = f->name;
    if (im->nbytes < f->at + f->n || memcmp(im->bytes + f->at, f->start, f->n) != 0) continue;
    if (f->own) return LM_OK;
    if (f->library) {
      if (lm_load_once(&f->loaded, load_image_plugin, f) == LM_OK) return LM_OK;
      return lm_fail_in_file(LM_E_IO, im->name, "cannot decode %s: %s", f->title, lm_error());
    }
    return lm_fail_in_file(LM_E_IO, im->name, "unsupported image format: %s; " SUPPORTED, f->title);
  }
  if (im->nbytes == 0) return lm_fail_in_file(LM_E_IO, im->name, "the image is empty; " SUPPORTED);
  char start[40] = "";
  for (size_t i = 0; i < 4 && i < im->nbytes; i++) {
    snprintf(start + strlen(start), sizeof start - strlen(start), " %02x", im->bytes[i]);
  }
  return lm_fail_in_file(LM_E_IO, im->name, "unknown image format: it starts with%s; " SUPPORTED, start);
}

lm_status lm_image_read_header(lm_image *im) {
  lm_image_header h = {0};
  NEED(find_format(im));
  NEED(im->codec->header(im, &h));
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

/* Mirrors the interval of n from *from within a side of `whole`. */
static void mirror_interval(int64_t *from, int64_t n, int64_t whole) { *from = whole - *from - n; }

/* Scales the interval of n pixels at `from` of a side of `whole` by 1/scale: the first pixel and the one after the
 * last. */
static void shrink_interval(int64_t from, int64_t n, int64_t whole, int scale, int64_t *first, int64_t *end) {
  *first = (from + scale / 2) / scale;
  *end = from + n == whole ? lm_ceil_div(whole, scale) : (from + n + scale / 2) / scale;
}

lm_status lm_image_decode(const lm_image *im, lm_image_mode mode, const lm_image_crop *crop, const int64_t *at_least,
                          lm_tensor **out) {
  LM_OWNED *t = NULL;
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
  /* The crop in coordinates of the stored image. */
  int64_t height = orientation_change.swap ? im->width : im->height,
          width = orientation_change.swap ? im->height : im->width;
  int64_t y = orientation_change.swap ? part.left : part.top, rows = orientation_change.swap ? part.width : part.height;
  int64_t x = orientation_change.swap ? part.top : part.left,
          columns = orientation_change.swap ? part.height : part.width;
  if (orientation_change.flip_y) mirror_interval(&y, rows, height);
  if (orientation_change.flip_x) mirror_interval(&x, columns, width);
  lm_region r = {y, y + rows, x, x + columns, height, width};
  int scale = 1;
  if (at_least && im->codec->decode_scaled) {
    for (int s = 8; s > 1 && scale == 1; s /= 2) {
      lm_region smaller = r;
      shrink_interval(y, rows, height, s, &smaller.y0, &smaller.y1);
      shrink_interval(x, columns, width, s, &smaller.x0, &smaller.x1);
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
  NEED(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 3, size, LM_CONTIGUOUS, &t));
  lm_plane_target to = {.first = (uint8_t *)t->data,
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
  if (!im->codec->decode_scaled) {
    NEED(im->codec->decode(im, &r, &to));
  } else {
    bool alpha = to.channels % 2 == 0;
    if (alpha) memset(t->data + --to.channels * to.plane, 255, (size_t)to.plane);
    NEED(im->codec->decode_scaled(im, scale, &r, &to));
  }
  *out = lm_tensor_take(&t);
  return LM_OK;
}

lm_status lm_image_decode_gif(const lm_image *image, int channels, lm_tensor **out) {
  if (image->codec->decode_frames) return image->codec->decode_frames(image, channels, out);
  return lm_fail_value("decode_gif", "bytes", "a GIF", image->format_name);
}

lm_status lm_image_encode(const char *name, const lm_tensor *pixels, int value, lm_tensor **out) {
  format *f = formats;
  while (strcmp(f->name, name) != 0) f++;
  if (lm_load_once(&f->loaded, load_image_plugin, f) == LM_OK) return f->codec.encode(pixels, value, out);
  return lm_fail(LM_E_IO, "encode_%s: %s", name, lm_error());
}
