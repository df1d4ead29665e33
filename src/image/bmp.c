/* Decodes BMP: Windows' headers of 12, 40 and more bytes; 1 to 32 bits a pixel, channel masks; no compression. */
#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

enum { FILE_HEADER = 14, RGB = 0, MASKS = 3, ALPHA_MASKS = 6 };

typedef struct bitmap {
  int64_t height, width;
  bool downwards, gray; /* true if the first row is the top one; true if the palette is all gray */
  unsigned bits, compression;
  size_t pixels, row; /* offset of the first row; bytes of a row */
  uint8_t palette[256][4];
  uint32_t mask[4]; /* masks of red, green, blue, alpha */
} bitmap;

static uint32_t read_bmp_u16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t read_bmp_u32(const uint8_t *p) { return read_bmp_u16(p) | read_bmp_u16(p + 2) << 16; }

static lm_status fail_bmp(const lm_image *image, const char *text) {
  return lm_fail_malformed(image->name, "BMP", LM_NO_OFFSET, "%s", text);
}

static lm_status read_bitmap(const lm_image *image, bitmap *b) {
  static const uint32_t masks16[4] = {0x7c00, 0x3e0, 0x1f, 0}, masks32[4] = {0xff0000, 0xff00, 0xff, 0};
  const uint8_t *p = image->bytes;
  uint32_t size = image->nbytes >= 54 ? read_bmp_u32(p + FILE_HEADER) : 0;
  bool old = size == 12;
  if (image->nbytes < 54 || size > image->nbytes - FILE_HEADER) return fail_bmp(image, "truncated");
  if (!old && size < 40) return fail_bmp(image, lm_text("unknown header of %u bytes", size));
  int32_t height = old ? (int32_t)read_bmp_u16(p + 20) : (int32_t)read_bmp_u32(p + 22);
  unsigned bits = read_bmp_u16(p + (old ? 24 : 28)), kind = old ? RGB : read_bmp_u32(p + 30);
  *b = (bitmap){.height = height < 0 ? -(int64_t)height : height,
                .width = old ? (int32_t)read_bmp_u16(p + 18) : (int32_t)read_bmp_u32(p + 18),
                .downwards = height < 0,
                .bits = bits,
                .pixels = read_bmp_u32(p + 10)};
  if (b->width < 1 || b->height < 1) return fail_bmp(image, "it has no size");
  bool masked = (kind == MASKS || kind == ALPHA_MASKS) && (bits == 16 || bits == 32),
       whole = bits % 8 == 0 && bits <= 32;
  if ((kind != RGB && !masked) || !(bits == 1 || bits == 2 || bits == 4 || (whole && bits > 0))) {
    return fail_bmp(image, lm_text("unsupported: %u bits a pixel and compression %u", bits, kind));
  }
  size_t at = FILE_HEADER + size;
  memcpy(b->mask, bits == 16 ? masks16 : masks32, sizeof b->mask);
  if (masked) {
    size_t n = size >= 56 || kind == ALPHA_MASKS ? 4 : 3;
    if (FILE_HEADER + 40 + 4 * n > image->nbytes) return fail_bmp(image, "truncated");
    for (size_t i = 0; i < n; i++) b->mask[i] = read_bmp_u32(p + FILE_HEADER + 40 + 4 * i);
  }
  uint32_t used = old ? 0 : read_bmp_u32(p + 46);
  size_t count = bits > 8 ? 0 : used > 0 && used < 1u << bits ? used : 1u << bits, entry = old ? 3 : 4;
  if (count * entry > image->nbytes - at) return fail_bmp(image, "truncated");
  b->gray = count > 0;
  for (size_t i = 0; i < count; i++, at += entry) {
    memcpy(b->palette[i], (uint8_t[]){p[at + 2], p[at + 1], p[at], 255}, 4);
    b->gray = b->gray && p[at] == p[at + 1] && p[at + 1] == p[at + 2];
  }
  b->row = ((size_t)b->width * bits + 31) / 32 * 4;
  bool there = b->pixels <= image->nbytes && (image->nbytes - b->pixels) / b->row >= (size_t)b->height;
  return there ? LM_OK : fail_bmp(image, "truncated");
}

static lm_status bmp_header(const lm_image *image, lm_image_header *out) {
  bitmap b;
  NEED(read_bitmap(image, &b));
  *out = (lm_image_header){b.height, b.width, (b.gray ? 1 : 3) + (b.mask[3] != 0), 1};
  return LM_OK;
}

/* Returns the bits of a mask scaled to 0 to 255, rounded down as Pillow does. */
static uint8_t scale_masked_bits(uint32_t v, uint32_t mask) {
  int shift = mask ? __builtin_ctz(mask) : 0;
  return mask ? (uint8_t)((uint64_t)((v & mask) >> shift) * 255 / (mask >> shift)) : 255;
}

static void read_row(const bitmap *b, const uint8_t *p, uint8_t *rgba) {
  unsigned bits = b->bits;
  for (int64_t x = 0; x < b->width; x++, rgba += 4) {
    if (bits <= 8) {
      int64_t bit = x * bits;
      memcpy(rgba, b->palette[p[bit / 8] >> (8 - bits - bit % 8) & ((1 << bits) - 1)], 4);
    } else {
      const uint8_t *q = p + x * bits / 8;
      uint32_t v = read_bmp_u16(q) | (bits > 16 ? (uint32_t)q[2] << 16 : 0) | (bits > 24 ? (uint32_t)q[3] << 24 : 0);
      for (int c = 0; c < 4; c++) rgba[c] = scale_masked_bits(v, b->mask[c]);
    }
  }
}

static lm_status decode_bmp(const lm_image *image, const lm_region *region, const lm_plane_target *to) {
  bitmap b;
  NEED(read_bitmap(image, &b));
  if (b.height != region->height || b.width != region->width) return fail_bmp(image, "it changed while it was read");
  uint8_t *rgba = lm_malloc((size_t)region->width * 4);
  if (!rgba) return LM_E_OOM;
  for (int64_t y = region->y0; y < region->y1; y++) {
    read_row(&b, image->bytes + b.pixels + (size_t)(b.downwards ? y : b.height - 1 - y) * b.row, rgba);
    lm_plane_target row = *to;
    row.first += (y - region->y0) * to->row;
    lm_planes_put_rgba(&row, &(lm_region){0, 1, region->x0, region->x1, 1, b.width}, rgba);
  }
  lm_free(rgba);
  return LM_OK;
}

const lm_codec lm_bmp_codec = {bmp_header, decode_bmp, NULL, NULL, NULL};
