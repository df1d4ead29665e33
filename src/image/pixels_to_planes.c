/* Converts interleaved pixels to planes and back. Compiled with -O3: loops over contiguous rows are vectorized. */
#include "image/codec.h"

#include <string.h>

static inline __attribute__((always_inline)) void split3_as_built(uint8_t *restrict a, uint8_t *restrict b,
                                                                  uint8_t *restrict c, const uint8_t *restrict p,
                                                                  int64_t n) {
  for (int64_t x = 0; x < n; x++) {
    a[x] = p[3 * x];
    b[x] = p[3 * x + 1];
    c[x] = p[3 * x + 2];
  }
}

#ifdef __x86_64__ /* x86-64's baseline lacks a byte shuffle and would take seven times as long */
__attribute__((target("ssse3"))) static void split3_shuffled(uint8_t *a, uint8_t *b, uint8_t *c, const uint8_t *p,
                                                             int64_t n) {
  split3_as_built(a, b, c, p, n);
}
#endif

static void split3(uint8_t *a, uint8_t *b, uint8_t *c, const uint8_t *p, int64_t n) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("ssse3")) {
    split3_shuffled(a, b, c, p, n);
    return;
  }
#endif
  split3_as_built(a, b, c, p, n);
}

static void pick_channel(uint8_t *restrict out, const uint8_t *restrict p, int64_t n, int pixel) {
  switch (pixel) {
    case 1: memcpy(out, p, (size_t)n); return;
    case 2:
      for (int64_t x = 0; x < n; x++) out[x] = p[2 * x];
      return;
    case 3:
      for (int64_t x = 0; x < n; x++) out[x] = p[3 * x];
      return;
    default:
      for (int64_t x = 0; x < n; x++) out[x] = p[4 * x];
  }
}

void lm_planes_put(const lm_plane_target *to, int64_t y, int64_t rows, int64_t width, const uint8_t *from,
                   size_t row_bytes, int pixel) {
  uint8_t *first = to->first + y * to->row;
  if (to->column == 1) {
    for (int64_t r = 0; r < rows; r++, first += to->row, from += row_bytes) {
      if (to->channels == 3 && pixel == 3) {
        split3(first, first + to->plane, first + 2 * to->plane, from, width);
      } else {
        for (int c = 0; c < to->channels; c++) pick_channel(first + c * to->plane, from + c, width, pixel);
      }
    }
    return;
  }
  /* The image is mirrored or rotated: adjacent bytes in memory are then columns here. */
  for (int c = 0; c < to->channels; c++) {
    for (int64_t x = 0; x < width; x++) {
      uint8_t *out = first + c * to->plane + x * to->column;
      const uint8_t *p = from + x * pixel + c;
      for (int64_t r = 0; r < rows; r++) out[r * to->row] = p[r * (int64_t)row_bytes];
    }
  }
}

void lm_planes_put_rgba(const lm_plane_target *to, const lm_region *region, const uint8_t *pixels) {
  enum { PART = 256 };
  int64_t columns = region->x1 - region->x0;
  for (int64_t y = region->y0; y < region->y1; y++) {
    const uint8_t *p = pixels + (y * region->width + region->x0) * 4;
    if (to->channels >= 3) lm_planes_put(to, y - region->y0, 1, columns, p, 0, 4);
    lm_plane_target part = *to;
    for (int64_t x = 0; to->channels < 3 && x < columns; x += PART, part.first += PART * to->column) {
      uint8_t gray[PART * 2];
      int64_t n = columns - x < PART ? columns - x : PART;
      for (int64_t i = 0; i < n; i++, p += 4) {
        gray[2 * i] = (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16);
        gray[2 * i + 1] = p[3];
      }
      lm_planes_put(&part, y - region->y0, 1, n, gray, 0, 2);
    }
  }
}

void lm_planes_row(const lm_tensor *pixels, int64_t y, uint8_t *out) {
  int64_t channels = pixels->size[0], width = pixels->size[2], column = pixels->stride[2];
  for (int64_t c = 0; c < channels; c++) {
    const uint8_t *p = (const uint8_t *)pixels->data + c * pixels->stride[0] + y * pixels->stride[1];
    for (int64_t x = 0; x < width; x++) out[x * channels + c] = p[x * column];
  }
}
