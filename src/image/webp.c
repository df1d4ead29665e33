/* Decodes and encodes WebP by libwebp: single images; files of several frames are refused. */
#include <webp/decode.h>
#include <webp/encode.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

static lm_status fail_webp(const lm_image *image, VP8StatusCode code) {
  if (code == VP8_STATUS_OUT_OF_MEMORY) return lm_fail_in_file(LM_E_OOM, image->name, "out of memory");
  const char *text = code == VP8_STATUS_NOT_ENOUGH_DATA ? "truncated" : lm_text("libwebp reports error %d", (int)code);
  return lm_fail_malformed(image->name, "WebP", LM_NO_OFFSET, "%s", text);
}

static lm_status read_webp_header(const lm_image *image, lm_image_header *out) {
  WebPBitstreamFeatures f;
  VP8StatusCode code = WebPGetFeatures(image->bytes, image->nbytes, &f);
  if (code != VP8_STATUS_OK) return fail_webp(image, code);
  *out = (lm_image_header){f.height, f.width, f.has_alpha ? 4 : 3, 1};
  if (!f.has_animation) return LM_OK;
  return lm_fail_in_file(LM_E_IO, image->name, "an animated WebP cannot be decoded; save its frames as images");
}

static lm_status decode_webp(const lm_image *image, const lm_region *region, const lm_plane_target *to) {
  size_t row = (size_t)region->width * 4, bytes = (size_t)region->height * row;
  uint8_t *pixels = lm_malloc(bytes);
  WebPDecoderConfig config;
  lm_status status = pixels && WebPInitDecoderConfig(&config) ? LM_OK : LM_E_OOM;
  if (status == LM_OK) {
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = (WebPRGBABuffer){pixels, (int)row, bytes};
    VP8StatusCode code = WebPDecode(image->bytes, image->nbytes, &config);
    if (code != VP8_STATUS_OK) status = fail_webp(image, code);
  }
  if (status == LM_OK) lm_planes_put_rgba(to, region, pixels);
  lm_free(pixels);
  return status;
}

static int append_webp_bytes(const uint8_t *data, size_t n, const WebPPicture *picture) {
  lm_bytes *bytes = picture->custom_ptr;
  lm_put(bytes, data, n);
  return !bytes->failed;
}

static lm_status encode_webp(const lm_tensor *pixels, int quality, lm_tensor **out) {
  NEED(lm_pixels_check("encode_webp", pixels, 1 << 3 | 1 << 4, WEBP_MAX_DIMENSION));
  if (quality < 0) return lm_fail_int("encode_webp", "quality", "from 0 to 100", quality);
  int channels = (int)pixels->size[0], height = (int)pixels->size[1], width = (int)pixels->size[2];
  int row = width * channels;
  bool lossless = quality > 100;
  lm_bytes bytes = {0};
  WebPConfig config;
  WebPPicture picture;
  uint8_t *all = lm_malloc((size_t)height * (size_t)row);
  if (!all) return LM_E_OOM;
  for (int y = 0; y < height; y++) lm_planes_row(pixels, y, all + (size_t)y * (size_t)row);
  bool done =
      WebPConfigPreset(&config, WEBP_PRESET_DEFAULT, lossless ? 70 : (float)quality) && WebPPictureInit(&picture);
  if (done) {
    config.lossless = picture.use_argb = lossless;
    picture.width = width, picture.height = height;
    picture.writer = append_webp_bytes, picture.custom_ptr = &bytes;
    done = (channels == 4 ? WebPPictureImportRGBA : WebPPictureImportRGB)(&picture, all, row) &&
           WebPEncode(&config, &picture);
    WebPPictureFree(&picture);
  }
  lm_free(all);
  if (done) return lm_image_bytes(&bytes, out);
  int code = (int)picture.error_code;
  bool no_memory = bytes.failed || code == VP8_ENC_ERROR_OUT_OF_MEMORY || code == VP8_ENC_ERROR_BITSTREAM_OUT_OF_MEMORY;
  lm_bytes_free(&bytes);
  return no_memory ? lm_fail_memory("memory for a WebP file")
                   : lm_fail_call(LM_E_ARG, "encode_webp", "WebPEncode", code, NULL, NULL);
}

LM_CODEC(.header = read_webp_header, .decode = decode_webp, .encode = encode_webp)
