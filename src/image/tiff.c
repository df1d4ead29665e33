/* Decodes the first image of a TIFF file by libtiff, which converts it to 8 bits a channel. */
#include <stdarg.h>
#include <stdio.h>
#include <tiffio.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

enum { SPARE = 64 << 20 }; /* bytes that libtiff may allocate at once besides pixels */

typedef struct reading {
  const lm_image *image;
  uint64_t at;
  TIFF *tiff;
  char text[160]; /* text of the first error */
} reading;

static int keep_tiff_error(TIFF *tiff, void *arg, const char *module, const char *format, va_list args) {
  reading *r = arg; /* NULL for warnings, which are ignored */
  (void)tiff, (void)module;
  if (r && !r->text[0]) vsnprintf(r->text, sizeof r->text, format, args);
  return 1;
}

static tmsize_t read_tiff(thandle_t handle, void *out, tmsize_t n) {
  reading *r = handle;
  if (n < 0 || r->at > r->image->nbytes) return 0;
  uint64_t left = r->image->nbytes - r->at, count = (uint64_t)n < left ? (uint64_t)n : left;
  memcpy(out, r->image->bytes + r->at, (size_t)count);
  r->at += count;
  return (tmsize_t)count;
}

static tmsize_t write_none(thandle_t handle, void *data, tmsize_t n) { return handle == data ? n : 0; }

static toff_t seek_tiff(thandle_t handle, toff_t offset, int whence) {
  reading *r = handle;
  r->at = offset + (whence == SEEK_CUR ? r->at : whence == SEEK_END ? r->image->nbytes : 0);
  return r->at;
}

static int close_nothing(thandle_t handle) { return handle == NULL; }

static toff_t size_of(thandle_t handle) { return ((reading *)handle)->image->nbytes; }

static lm_status fail_tiff(const reading *r, const char *text) {
  return lm_fail_malformed(r->image->name, "TIFF", LM_NO_OFFSET, "%s",
                           lm_ellipsize(r->text[0] ? r->text : text, sizeof r->text));
}

static lm_status open_bytes(reading *r, int64_t pixels) {
  TIFFOpenOptions *o = TIFFOpenOptionsAlloc();
  if (!o) return LM_E_OOM;
  TIFFOpenOptionsSetMaxSingleMemAlloc(o, SPARE + (tmsize_t)pixels * 16);
  TIFFOpenOptionsSetErrorHandlerExtR(o, keep_tiff_error, r);
  TIFFOpenOptionsSetWarningHandlerExtR(o, keep_tiff_error, NULL);
  r->tiff = TIFFClientOpenExt("TIFF", "rm", r, read_tiff, write_none, seek_tiff, close_nothing, size_of, NULL, NULL, o);
  TIFFOpenOptionsFree(o);
  return r->tiff ? LM_OK : fail_tiff(r, "it cannot be opened");
}

static lm_status read_tiff_header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  uint32_t height = 0, width = 0;
  uint16_t orientation = 1, kind = PHOTOMETRIC_MINISBLACK, extras = 0, *extra = NULL;
  NEED(open_bytes(&r, 0));
  TIFFGetField(r.tiff, TIFFTAG_IMAGELENGTH, &height);
  TIFFGetField(r.tiff, TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(r.tiff, TIFFTAG_ORIENTATION, &orientation);
  TIFFGetField(r.tiff, TIFFTAG_PHOTOMETRIC, &kind);
  bool alpha = TIFFGetField(r.tiff, TIFFTAG_EXTRASAMPLES, &extras, &extra) && extras > 0 &&
               (extra[0] == EXTRASAMPLE_ASSOCALPHA || extra[0] == EXTRASAMPLE_UNASSALPHA);
  bool gray = kind == PHOTOMETRIC_MINISBLACK || kind == PHOTOMETRIC_MINISWHITE;
  bool upright = orientation < 1 || orientation > 8;
  *out = (lm_image_header){height, width, (gray ? 1 : 3) + alpha, upright ? 1 : orientation};
  TIFFClose(r.tiff);
  return height - 1u < INT32_MAX && width - 1u < INT32_MAX ? LM_OK : fail_tiff(&r, "it has no size");
}

/* Returns the error for an image not converted: unsupported samples, or what libtiff said of the file. */
static lm_status fail_not_converted(const reading *r) {
  static const char *const kinds[] = {"samples", "unsigned integers", "signed integers", "floats"};
  uint16_t bits = 1, kind = SAMPLEFORMAT_UINT;
  TIFFGetFieldDefaulted(r->tiff, TIFFTAG_BITSPERSAMPLE, &bits);
  TIFFGetFieldDefaulted(r->tiff, TIFFTAG_SAMPLEFORMAT, &kind);
  bool known = bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16;
  if (known && kind <= SAMPLEFORMAT_INT) return fail_tiff(r, "truncated");
  return lm_fail_in_file(LM_E_IO, r->image->name,
                         "unsupported TIFF: expected unsigned integers of 1, 2, 4, 8 or 16 bits "
                         "as samples, got %s of %d bits",
                         kinds[kind <= SAMPLEFORMAT_IEEEFP ? kind : 0], bits);
}

static lm_status decode_tiff(const lm_image *image, const lm_region *region, const lm_plane_target *to) {
  reading r = {.image = image};
  lm_status status;
  uint16_t orientation = 1;
  uint32_t *pixels = lm_malloc((size_t)(region->height * region->width) * sizeof *pixels);
  if (!pixels) return LM_E_OOM;
  memset(pixels, 0, (size_t)(region->height * region->width) * sizeof *pixels);
  TRY(open_bytes(&r, region->height * region->width));
  if (image->channels % 2 == 0) { /* libtiff premultiplies colors by alpha otherwise */
    TIFFSetField(r.tiff, TIFFTAG_EXTRASAMPLES, 1, &(uint16_t){EXTRASAMPLE_ASSOCALPHA});
  }
  TIFFGetFieldDefaulted(r.tiff, TIFFTAG_ORIENTATION, &orientation); /* keeps rows as stored */
  if (!TIFFReadRGBAImageOriented(r.tiff, (uint32_t)region->width, (uint32_t)region->height, pixels, orientation, 1)) {
    TRY(fail_not_converted(&r));
  }
  lm_planes_put_rgba(to, region, (const uint8_t *)pixels);
done:
  if (r.tiff) TIFFClose(r.tiff);
  lm_free(pixels);
  return status;
}

LM_CODEC(.header = read_tiff_header, .decode = decode_tiff)
