#include "image/codec.h"

enum { ORIENTATION = 0x0112, SHORT = 3, ENTRY = 12 };

static unsigned read_exif_u16(const uint8_t *p, bool big) { return big ? p[0] << 8 | p[1] : p[1] << 8 | p[0]; }

static uint32_t read_exif_u32(const uint8_t *p, bool big) {
  uint32_t first = read_exif_u16(p, big), second = read_exif_u16(p + 2, big);
  return big ? first << 16 | second : second << 16 | first;
}

/* Reads TIFF 6.0, section 2: byte order, 42, offset of the first directory. That has a count and entries of 12 bytes:
 * tag, type, count, value. */
int lm_exif_orientation(const uint8_t *tiff, size_t n) {
  if (n < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return 1;
  bool big = tiff[0] == 'M';
  size_t at = read_exif_u32(tiff + 4, big);
  if (read_exif_u16(tiff + 2, big) != 42 || at > n || n - at < 2) return 1;
  const uint8_t *entry = tiff + at + 2;
  size_t count = read_exif_u16(tiff + at, big), capacity = (n - at - 2) / ENTRY;
  for (size_t i = 0; i < count && i < capacity; i++, entry += ENTRY) {
    if (read_exif_u16(entry, big) != ORIENTATION) continue;
    unsigned value = read_exif_u16(entry + 8, big);
    return read_exif_u16(entry + 2, big) == SHORT && value >= 1 && value <= 8 ? (int)value : 1;
  }
  return 1;
}
