#include <string.h>

#include "base/mem.h"
#include "image/jpeg.h"

enum { STRIP = 16, MAX_SCANS = 500 }; /* rows per read; a progressive file of a few KB could have scans without end */

typedef struct reading {
  struct jpeg_decompress_struct jpeg;
  lm_jpeg_errors errors;
  struct jpeg_progress_mgr progress;
  const lm_image *image;
  uint8_t *strip; /* STRIP rows */
} reading;

/* ---- the header */

/* Returns the orientation from the first APP1 segment that begins with "Exif"; such segments precede the image. A
 * segment starts with its length in two bytes, which it includes. */
static int find_orientation(const uint8_t *p, size_t n) {
  static const char exif[] = "Exif\0"; /* plus its closing zero */
  size_t at = 2;
  while (at + 4 <= n && p[at] == 0xff) {
    int marker = p[at + 1];
    if (marker == 0xff) { /* a fill byte */
      at++;
      continue;
    }
    size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
    if (marker == 0xda || marker == 0xd9 || length < 2 || length > n - at - 2) break; /* the image data begins */
    const uint8_t *data = p + at + 4;
    if (marker == 0xe1 && length >= 2 + sizeof exif && memcmp(data, exif, sizeof exif) == 0) {
      return lm_exif_orientation(data + sizeof exif, length - 2 - sizeof exif);
    }
    at += 2 + length;
  }
  return 1;
}

static void open_bytes(reading *r) {
  jpeg_create_decompress(&r->jpeg);
  jpeg_mem_src(&r->jpeg, r->image->bytes, (unsigned long)r->image->nbytes);
  jpeg_read_header(&r->jpeg, TRUE);
}

static lm_status read_header(reading *r, lm_image_header *out) {
  if (setjmp(r->errors.back)) return lm_jpeg_problem((j_common_ptr)&r->jpeg, r->image->name);
  open_bytes(r);
  out->height = r->jpeg.image_height;
  out->width = r->jpeg.image_width;
  out->channels = r->jpeg.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
  return LM_OK;
}

lm_status lm_jpeg_header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  lm_jpeg_catch(&r.errors, (j_common_ptr)&r.jpeg, image->allow_corrupt);
  lm_status status = read_header(&r, out);
  jpeg_destroy_decompress(&r.jpeg);
  out->orientation = find_orientation(image->bytes, image->nbytes);
  return status;
}

/* ---- pixels */

static void watch(j_common_ptr jpeg) {
  if (((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS)
    lm_jpeg_give_up(jpeg, "a JPEG must have at most 500 scans");
}

/* Returns c * k / 255, rounded: Adobe's CMYK is stored inverted. */
static inline uint8_t ink(int c, int k) {
  int v = k * (255 - c) + 128;
  v = ((v >> 8) + v) >> 8;
  return (uint8_t)(k > v ? k - v : 0);
}

/* Converts in place, four bytes a pixel before and after. The weights are ITU-R 601's, in 1/65536. */
static void cmyk_to_rgb(uint8_t *p, int64_t pixels, bool gray) {
  for (int64_t i = 0; i < pixels; i++, p += 4) {
    int r = ink(p[0], p[3]), g = ink(p[1], p[3]), b = ink(p[2], p[3]);
    p[0] = (uint8_t)(gray ? (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16 : r);
    p[1] = (uint8_t)g;
    p[2] = (uint8_t)b;
  }
}

/* Returns the extra columns to decode on each side of a crop: a pixel's smooth chroma depends on its neighbors. */
static int margin_of(const struct jpeg_decompress_struct *jpeg) { return jpeg->max_h_samp_factor * 2; }

static lm_status read_pixels(reading *r, int scale, const lm_region *region, const lm_plane_target *to) {
  j_decompress_ptr jpeg = &r->jpeg;
  if (setjmp(r->errors.back)) return lm_jpeg_problem((j_common_ptr)jpeg, r->image->name);
  open_bytes(r);
  bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  bool gray = to->channels == 1;
  jpeg->out_color_space = cmyk ? JCS_CMYK : gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = (unsigned)scale;
  r->progress.progress_monitor = watch;
  jpeg->progress = &r->progress;
  jpeg_start_decompress(jpeg);
  int64_t first = 0;
  if (region->y1 > jpeg->output_height || region->x1 > jpeg->output_width) {
    lm_jpeg_give_up((j_common_ptr)jpeg, "changed since its header was read");
  }
  if (region->x1 - region->x0 < jpeg->output_width) {
    int margin = margin_of(jpeg);
    JDIMENSION x = region->x0 > margin ? (JDIMENSION)(region->x0 - margin) : 0;
    JDIMENSION end = jpeg->output_width - region->x1 > margin ? (JDIMENSION)(region->x1 + margin) : jpeg->output_width;
    JDIMENSION width = end - x;
    jpeg_crop_scanline(jpeg, &x, &width);
    first = region->x0 - x;
  }
  size_t row_bytes = (size_t)jpeg->output_width * (size_t)jpeg->output_components;
  r->strip = lm_malloc(STRIP * row_bytes);
  if (!r->strip) return LM_E_OOM;
  if (region->y0 > 0) jpeg_skip_scanlines(jpeg, (JDIMENSION)region->y0);
  for (int64_t y = region->y0; y < region->y1;) {
    JSAMPROW rows[STRIP];
    int n = region->y1 - y < STRIP ? (int)(region->y1 - y) : STRIP, done = 0;
    for (int i = 0; i < n; i++) rows[i] = r->strip + (size_t)i * row_bytes;
    while (done < n) done += (int)jpeg_read_scanlines(jpeg, rows + done, (JDIMENSION)(n - done));
    if (cmyk) cmyk_to_rgb(r->strip, n * (int64_t)jpeg->output_width, gray);
    lm_planes_put(to, y - region->y0, n, region->x1 - region->x0, r->strip + first * jpeg->output_components, row_bytes,
                  jpeg->output_components);
    y += n;
  }
  return LM_OK;
}

lm_status lm_jpeg_decode(const lm_image *image, int scale, const lm_region *region, const lm_plane_target *to) {
  reading r = {.image = image};
  lm_jpeg_catch(&r.errors, (j_common_ptr)&r.jpeg, image->allow_corrupt);
  lm_status status = read_pixels(&r, scale, region, to);
  jpeg_destroy_decompress(&r.jpeg);
  lm_free(r.strip);
  return status;
}
