/* TIFF by libtiff: the first image of a file, of 8 bits a channel by libtiff's own conversion. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tiffio.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

enum { SPARE = 64 << 20 }; /* bytes of one allocation that have nothing to do with pixels */

typedef struct reading {
  const lm_image *image;
  uint64_t at;
  TIFF *tiff;
  char text[160]; /* of the first error */
} reading;

static int note(TIFF *tiff, void *arg, const char *module, const char *format, va_list args) {
  reading *r = arg;
  (void)tiff, (void)module;
  if (!r->text[0]) vsnprintf(r->text, sizeof r->text, format, args);
  return 1;
}

static int drop(TIFF *tiff, void *arg, const char *module, const char *format, va_list args) {
  (void)tiff, (void)arg, (void)module, (void)format, (void)args;
  return 1;
}

static tmsize_t take(thandle_t handle, void *out, tmsize_t n) {
  reading *r = handle;
  if (n < 0 || r->at > r->image->nbytes) return 0;
  uint64_t left = r->image->nbytes - r->at, count = (uint64_t)n < left ? (uint64_t)n : left;
  memcpy(out, r->image->bytes + r->at, (size_t)count);
  r->at += count;
  return (tmsize_t)count;
}

static tmsize_t put(thandle_t handle, void *data, tmsize_t n) {
  (void)handle, (void)data, (void)n;
  return 0;
}

static toff_t seek(thandle_t handle, toff_t offset, int whence) {
  reading *r = handle;
  r->at = offset + (whence == SEEK_CUR ? r->at : whence == SEEK_END ? r->image->nbytes : 0);
  return r->at;
}

static int close_nothing(thandle_t handle) { return handle == NULL; }

static toff_t size_of(thandle_t handle) { return ((reading *)handle)->image->nbytes; }

static lm_status problem(const reading *r, const char *text) {
  return lm_fail_malformed(r->image->name, "TIFF", LM_NO_OFFSET, "%s",
                           lm_ellipsize(r->text[0] ? r->text : text, sizeof r->text));
}

static lm_status open_bytes(reading *r, uint64_t pixels) {
  TIFFOpenOptions *o = TIFFOpenOptionsAlloc();
  if (!o) return LM_E_OOM;
  TIFFOpenOptionsSetMaxSingleMemAlloc(o, (tmsize_t)(SPARE + pixels * 16));
  TIFFOpenOptionsSetErrorHandlerExtR(o, note, r);
  TIFFOpenOptionsSetWarningHandlerExtR(o, drop, NULL);
  r->tiff = TIFFClientOpenExt("TIFF", "rm", r, take, put, seek, close_nothing, size_of, NULL, NULL, o);
  TIFFOpenOptionsFree(o);
  return r->tiff ? LM_OK : problem(r, "it cannot be opened");
}

static lm_status read_header(reading *r, lm_image_header *out) {
  uint32_t height = 0, width = 0;
  uint16_t orientation = 1, kind = PHOTOMETRIC_MINISBLACK, extras = 0, *extra = NULL;
  if (!TIFFGetField(r->tiff, TIFFTAG_IMAGELENGTH, &height) || !TIFFGetField(r->tiff, TIFFTAG_IMAGEWIDTH, &width) ||
      height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX) {
    return problem(r, "it has no size");
  }
  TIFFGetField(r->tiff, TIFFTAG_ORIENTATION, &orientation);
  TIFFGetField(r->tiff, TIFFTAG_PHOTOMETRIC, &kind);
  bool alpha = TIFFGetField(r->tiff, TIFFTAG_EXTRASAMPLES, &extras, &extra) && extras > 0 &&
               (extra[0] == EXTRASAMPLE_ASSOCALPHA || extra[0] == EXTRASAMPLE_UNASSALPHA);
  bool gray = kind == PHOTOMETRIC_MINISBLACK || kind == PHOTOMETRIC_MINISWHITE;
  *out = (lm_image_header){height, width, (gray ? 1 : 3) + alpha,
                           orientation >= 1 && orientation <= 8 ? orientation : 1};
  return LM_OK;
}

lm_status lm_tiff_header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  lm_status status = open_bytes(&r, 0);
  if (status == LM_OK) status = read_header(&r, out);
  if (r.tiff) TIFFClose(r.tiff);
  return status;
}

lm_status lm_tiff_decode(const lm_image *image, const lm_region *region, const lm_planes *to) {
  reading r = {.image = image};
  lm_status status;
  lm_image_header h;
  TIFFRGBAImage rgba;
  char text[1024]; /* as libtiff asks for */
  uint32_t *pixels = NULL;
  bool begun = false;
  TRY(lm_tiff_header(image, &h));
  TRY(open_bytes(&r, (uint64_t)h.height * (uint64_t)h.width));
  if (region->y1 > h.height || region->x1 > h.width) TRY(problem(&r, "changed since its header was read"));
  if (h.channels % 2 == 0) { /* else libtiff multiplies colors by their alpha */
    TIFFSetField(r.tiff, TIFFTAG_EXTRASAMPLES, 1, &(uint16_t){EXTRASAMPLE_ASSOCALPHA});
  }
  if (!TIFFRGBAImageOK(r.tiff, text) || !TIFFRGBAImageBegin(&rgba, r.tiff, 1, text)) TRY(problem(&r, text));
  begun = true;
  rgba.req_orientation = rgba.orientation; /* rows as they are stored */
  pixels = lm_malloc((size_t)(h.height * h.width) * sizeof *pixels);
  if (!pixels) TRY(LM_E_OOM);
  memset(pixels, 0, (size_t)(h.height * h.width) * sizeof *pixels);
  if (!TIFFRGBAImageGet(&rgba, pixels, (uint32_t)h.width, (uint32_t)h.height)) TRY(problem(&r, "truncated"));
  for (int64_t y = region->y0; y < region->y1; y++) {
    lm_planes_put_rgba(to, region, y, (const uint8_t *)(pixels + y * h.width));
  }
done:
  if (begun) TIFFRGBAImageEnd(&rgba);
  if (r.tiff) TIFFClose(r.tiff);
  lm_free(pixels);
  return status;
}
