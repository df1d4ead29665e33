/* BMP: Windows' headers of 12, 40 and more bytes; 1 to 32 bits a pixel, masks of channels, RLE4 and RLE8. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

enum { FILE_HEADER = 14, RGB = 0, RLE8 = 1, RLE4 = 2, MASKS = 3, ALPHA_MASKS = 6 };

typedef struct bitmap {
  const lm_image *image;
  int64_t height, width;
  bool downwards; /* the first row is the upper one */
  bool gray, alpha;
  unsigned bits, compression;
  size_t pixels, row; /* where they begin; bytes of a row */
  uint8_t palette[256][4];
  uint32_t mask[4]; /* of red, green, blue, alpha */
} bitmap;

static uint32_t at16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t at32(const uint8_t *p) { return at16(p) | at16(p + 2) << 16; }

static lm_status problem(const bitmap *b, const char *text) {
  return lm_fail_malformed(b->image->name, "BMP", LM_NO_OFFSET, "%s", text);
}

static lm_status read_palette(bitmap *b, size_t at, uint32_t used, size_t entry) {
  size_t count = b->bits > 8 ? 0 : used > 0 && used < 1u << b->bits ? used : 1u << b->bits;
  if (count * entry > b->image->nbytes - at) return problem(b, "truncated");
  b->gray = count > 0;
  for (size_t i = 0; i < count; i++) {
    const uint8_t *p = b->image->bytes + at + i * entry;
    b->palette[i][0] = p[2], b->palette[i][1] = p[1], b->palette[i][2] = p[0], b->palette[i][3] = 255;
    b->gray = b->gray && p[0] == p[1] && p[1] == p[2];
  }
  return LM_OK;
}

static lm_status read_bitmap(const lm_image *image, bitmap *b) {
  static const uint32_t masks16[4] = {0x7c00, 0x3e0, 0x1f, 0}, masks32[4] = {0xff0000, 0xff00, 0xff, 0};
  *b = (bitmap){.image = image};
  const uint8_t *p = image->bytes;
  uint32_t size = image->nbytes >= 30 ? at32(p + FILE_HEADER) : 0;
  bool old = size == 12;
  if (image->nbytes < 30 || size > image->nbytes - FILE_HEADER) return problem(b, "truncated");
  if (!old && size < 40) return problem(b, lm_text("unknown header of %u bytes", size));
  int32_t height = old ? (int32_t)at16(p + 20) : (int32_t)at32(p + 22);
  b->width = old ? (int32_t)at16(p + 18) : (int32_t)at32(p + 18);
  b->height = height < 0 ? -(int64_t)height : height;
  b->downwards = height < 0;
  b->bits = at16(p + (old ? 24 : 28));
  b->compression = old ? RGB : at32(p + 30);
  b->pixels = at32(p + 10);
  if (b->width < 1 || b->height < 1) return problem(b, "it has no size");
  unsigned bits = b->bits, kind = b->compression;
  bool masked = (kind == MASKS || kind == ALPHA_MASKS) && (bits == 16 || bits == 32);
  if (!(kind == RGB && (bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16 || bits == 24 || bits == 32)) &&
      !(kind == RLE8 && bits == 8) && !(kind == RLE4 && bits == 4) && !masked) {
    return problem(b, lm_text("unsupported: %u bits and compression %u", bits, kind));
  }
  size_t after = FILE_HEADER + size;
  memcpy(b->mask, bits == 16 ? masks16 : masks32, sizeof b->mask);
  if (masked) {
    int count = size >= 56 || kind == ALPHA_MASKS ? 4 : 3;
    size_t end = FILE_HEADER + 40 + 4 * (size_t)count;
    if (end > image->nbytes) return problem(b, "truncated");
    for (int i = 0; i < count; i++) b->mask[i] = at32(p + FILE_HEADER + 40 + 4 * i);
    if (after < end) after = end;
    b->alpha = b->mask[3] != 0;
  }
  NEED(read_palette(b, after, old ? 0 : at32(p + 46), old ? 3 : 4));
  b->row = ((size_t)b->width * bits + 31) / 32 * 4;
  bool dense = kind != RLE8 && kind != RLE4;
  if (b->pixels > image->nbytes || (dense && (image->nbytes - b->pixels) / b->row < (size_t)b->height)) {
    return problem(b, "truncated");
  }
  return LM_OK;
}

lm_status lm_bmp_header(const lm_image *image, lm_image_header *out) {
  bitmap b;
  NEED(read_bitmap(image, &b));
  *out = (lm_image_header){b.height, b.width, (b.gray ? 1 : 3) + b.alpha, 1};
  return LM_OK;
}

/* Runs into a byte for each pixel, rows in their order in the file. Pixels that no run has are color 0. */
static void expand(const bitmap *b, uint8_t *out) {
  const uint8_t *p = b->image->bytes + b->pixels, *end = b->image->bytes + b->image->nbytes;
  bool nibbles = b->compression == RLE4;
  int64_t x = 0, y = 0;
  while (end - p >= 2 && y < b->height) {
    int count = p[0], value = p[1];
    p += 2;
    if (count == 0 && value == 0) {
      x = 0, y++;
    } else if (count == 0 && value == 1) {
      return;
    } else if (count == 0 && value == 2) {
      if (end - p < 2) return;
      x += p[0], y += p[1], p += 2;
    } else {
      bool literal = count == 0;
      int n = literal ? value : count, bytes = literal ? (nibbles ? (n + 1) / 2 : n) : 0;
      if (end - p < bytes) return;
      for (int i = 0; i < n; i++, x++) {
        int both = literal ? p[nibbles ? i / 2 : i] : value;
        if (x < b->width) out[y * b->width + x] = (uint8_t)(!nibbles ? both : i % 2 ? both & 15 : both >> 4);
      }
      p += (bytes + 1) / 2 * 2;
      if (end < p) return;
    }
  }
}

/* The bits of a mask as 0 to 255, rounded down as Pillow does. */
static uint8_t masked(uint32_t v, uint32_t mask) {
  if (mask == 0) return 0;
  int shift = __builtin_ctz(mask);
  uint64_t most = mask >> shift;
  return (uint8_t)((uint64_t)((v & mask) >> shift) * 255 / most);
}

static void read_row(const bitmap *b, const uint8_t *p, unsigned bits, uint8_t *rgba) {
  for (int64_t x = 0; x < b->width; x++, rgba += 4) {
    if (bits <= 8) {
      int64_t bit = x * bits;
      memcpy(rgba, b->palette[p[bit / 8] >> (8 - bits - bit % 8) & ((1 << bits) - 1)], 4);
    } else if (bits == 24) {
      rgba[0] = p[3 * x + 2], rgba[1] = p[3 * x + 1], rgba[2] = p[3 * x], rgba[3] = 255;
    } else {
      uint32_t v = bits == 16 ? at16(p + 2 * x) : at32(p + 4 * x);
      for (int c = 0; c < 4; c++) rgba[c] = c == 3 && !b->alpha ? 255 : masked(v, b->mask[c]);
    }
  }
}

lm_status lm_bmp_decode(const lm_image *image, const lm_region *region, const lm_planes *to) {
  bitmap b;
  lm_status status;
  uint8_t *rgba = NULL, *expanded = NULL;
  TRY(read_bitmap(image, &b));
  if (region->y1 > b.height || region->x1 > b.width) TRY(problem(&b, "changed since its header was read"));
  bool runs = b.compression == RLE8 || b.compression == RLE4;
  rgba = lm_malloc((size_t)b.width * 4);
  if (runs) expanded = lm_malloc((size_t)(b.height * b.width));
  if (!rgba || (runs && !expanded)) TRY(LM_E_OOM);
  if (runs) {
    memset(expanded, 0, (size_t)(b.height * b.width));
    expand(&b, expanded);
  }
  for (int64_t y = region->y0; y < region->y1; y++) {
    int64_t stored = b.downwards ? y : b.height - 1 - y;
    const uint8_t *row = runs ? expanded + stored * b.width : image->bytes + b.pixels + (size_t)stored * b.row;
    read_row(&b, row, runs ? 8 : b.bits, rgba);
    lm_planes_put_rgba(to, region, y, rgba);
  }
done:
  lm_free(rgba);
  lm_free(expanded);
  return status;
}
