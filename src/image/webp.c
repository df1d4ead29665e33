/* WebP by libwebp: one image; files of several frames are refused. */
#include <string.h>
#include <webp/decode.h>
#include <webp/encode.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

static lm_status problem(const lm_image *image, VP8StatusCode code) {
  if (code == VP8_STATUS_OUT_OF_MEMORY) return lm_fail_in_file(LM_E_OOM, image->name, "out of memory");
  if (code == VP8_STATUS_NOT_ENOUGH_DATA) return lm_fail_malformed(image->name, "WebP", LM_NO_OFFSET, "truncated");
  return lm_fail_malformed(image->name, "WebP", LM_NO_OFFSET, "libwebp reports error %d", (int)code);
}

/* A RIFF file's chunks follow its first 12 bytes: a name, a length, and data of an even length. */
static int find_orientation(const uint8_t *p, size_t n) {
  static const char exif[] = "Exif\0"; /* with its closing zero, which some writers put first */
  for (size_t at = 12; at <= n && n - at >= 8;) {
    uint32_t length = p[at + 4] | p[at + 5] << 8 | p[at + 6] << 16 | (uint32_t)p[at + 7] << 24;
    size_t left = n - at - 8;
    if (length > left) break;
    if (memcmp(p + at, "EXIF", 4) == 0) {
      size_t skip = length >= sizeof exif && memcmp(p + at + 8, exif, sizeof exif) == 0 ? sizeof exif : 0;
      return lm_exif_orientation(p + at + 8 + skip, length - skip);
    }
    if (length + (length & 1) > left) break;
    at += 8 + (size_t)length + (length & 1);
  }
  return 1;
}

lm_status lm_webp_header(const lm_image *image, lm_image_header *out) {
  WebPBitstreamFeatures f;
  VP8StatusCode code = WebPGetFeatures(image->bytes, image->nbytes, &f);
  if (code != VP8_STATUS_OK) return problem(image, code);
  if (f.has_animation) {
    return lm_fail_in_file(LM_E_IO, image->name, "an animated WebP cannot be decoded; save its frames as images");
  }
  *out = (lm_image_header){f.height, f.width, f.has_alpha ? 4 : 3, find_orientation(image->bytes, image->nbytes)};
  return LM_OK;
}

lm_status lm_webp_decode(const lm_image *image, const lm_region *region, const lm_planes *to) {
  lm_status status;
  lm_image_header h;
  WebPDecoderConfig config;
  uint8_t *pixels = NULL;
  TRY(lm_webp_header(image, &h));
  if (region->y1 > h.height || region->x1 > h.width || !WebPInitDecoderConfig(&config)) {
    return lm_fail_in_file(LM_E_IO, image->name, "changed since its header was read");
  }
  size_t row = (size_t)h.width * 4;
  pixels = lm_malloc((size_t)h.height * row);
  if (!pixels) return LM_E_OOM;
  config.output.colorspace = MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = (WebPRGBABuffer){pixels, (int)row, (size_t)h.height * row};
  VP8StatusCode code = WebPDecode(image->bytes, image->nbytes, &config);
  if (code != VP8_STATUS_OK) status = problem(image, code);
  for (int64_t y = region->y0; status == LM_OK && y < region->y1; y++) {
    lm_planes_put_rgba(to, region, y, pixels + (size_t)y * row);
  }
  WebPFreeDecBuffer(&config.output);
done:
  lm_free(pixels);
  return status;
}

lm_status lm_image_encode_webp(const lm_tensor *pixels, int quality, lm_tensor **out) {
  lm_status status;
  lm_bytes bytes = {0};
  uint8_t *all = NULL, *file = NULL;
  TRY(lm_pixels_check("encode_webp", pixels, 1 << 3 | 1 << 4, WEBP_MAX_DIMENSION));
  if (quality < 0 || quality > 101) return lm_fail_int("encode_webp", "quality", "from 0 to 100", quality);
  int channels = (int)pixels->size[0], height = (int)pixels->size[1], width = (int)pixels->size[2];
  int row = width * channels;
  all = lm_malloc((size_t)height * (size_t)row);
  if (!all) return LM_E_OOM;
  for (int y = 0; y < height; y++) lm_planes_row(pixels, y, all + (size_t)y * (size_t)row);
  size_t n = quality > 100 ? (channels == 4 ? WebPEncodeLosslessRGBA : WebPEncodeLosslessRGB)(all, width, height, row, &file)
             : channels == 4 ? WebPEncodeRGBA(all, width, height, row, (float)quality, &file)
                             : WebPEncodeRGB(all, width, height, row, (float)quality, &file);
  if (n == 0) TRY(lm_fail(LM_E_OOM, "encode_webp: libwebp could not encode an image of %d x %d", height, width));
  lm_put(&bytes, file, n);
  status = lm_image_bytes(&bytes, out);
done:
  WebPFree(file);
  lm_bytes_free(&bytes);
  lm_free(all);
  return status;
}
