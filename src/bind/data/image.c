/* Decodes and encodes images. */
#include "image/image.h"

#include "base/message.h"
#include "bind/bind.h"

/* Reads a Lua string or a uint8 tensor; *out is borrowed. */
static lm_status read_bytes(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const uint8_t **out,
                            size_t *n) {
  if (lua_type(L, i) == LUA_TSTRING) {
    *out = (const uint8_t *)lua_tolstring(L, i, n);
    return LM_OK;
  }
  lm_tensor *t;
  if (!lm_to_tensor_handle(L, s, i)) {
    return lm_fail_value(fn, arg, "a string or a uint8 tensor", lm_describe_arg(L, s, i));
  }
  NEED(lm_read_tensor(L, s, i, fn, arg, &t));
  if (t->dtype != LM_U8 || t->ndim != 1 || LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t)) {
    return lm_fail_value(fn, arg, "a string or a contiguous 1-d uint8 tensor on cpu",
                         lm_text("%s %s", lm_dtype_name(t->dtype), lm_shape_of(t)));
  }
  *out = (const uint8_t *)t->data;
  *n = (size_t)t->numel;
  return LM_OK;
}

/* ---- image_header(bytes, name, max_pixels, apply_exif_orientation, allow_corrupt) -> height, width, channels, format
 * image_decode(the same, mode from 0, crop of four integers | nil, at_least of two | nil) -> tensor */

enum { HEADER = 5, MODE, CROP, AT_LEAST };

static lm_status read_image(lua_State *L, const lm_lua *s, const char *fn, lm_image *im) {
  NEED(read_bytes(L, s, 1, fn, "bytes", &im->bytes, &im->nbytes));
  NEED(LM_READ_ARGS(L, s, 2, fn, {"name", LM_ARG_TEXT, &im->name}, {"max_pixels", LM_ARG_I, &im->max_pixels},
                    {"apply_exif_orientation", LM_ARG_B, &im->upright},
                    {"allow_corrupt", LM_ARG_B, &im->allow_corrupt}));
  return lm_image_read_header(im);
}

static lm_status read_image_header(lua_State *L, lm_lua *s, void *arg) { return read_image(L, s, "open_image", arg); }

LM_FUNCTION(image_header) {
  lm_image im;
  lua_settop(L, HEADER);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), read_image_header, &im));
  lua_pushnumber(L, (double)im.height);
  lua_pushnumber(L, (double)im.width);
  lua_pushinteger(L, im.channels);
  lua_pushstring(L, im.format_name);
  return 4;
}

LM_FUNCTION(image_endings) { return lm_return_text(L, lm_image_endings); }

static lm_status decode_image(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "decode";
  lm_image im;
  int64_t mode;
  lm_ints crop = {.n = -1}, at_least = {.n = -1}; /* not given */
  NEED(read_image(L, s, fn, &im));
  NEED(LM_READ_ARGS(L, s, MODE, fn, {"mode", LM_ARG_I, &mode}, {"crop", LM_ARG_SIZE | LM_OR_NIL, &crop},
                    {"at_least", LM_ARG_SIZE | LM_OR_NIL, &at_least}));
  if (crop.n >= 0 && crop.n != 4) {
    return lm_fail_value(fn, "crop", "{top, left, height, width}", lm_text("%d numbers", crop.n));
  }
  if (at_least.n >= 0 && at_least.n != 2) {
    return lm_fail_value(fn, "at_least", "{height, width}", lm_text("%d numbers", at_least.n));
  }
  lm_image_crop part = {crop.v[0], crop.v[1], crop.v[2], crop.v[3]};
  return lm_image_decode(&im, (lm_image_mode)mode, crop.n > 0 ? &part : NULL, at_least.n > 0 ? at_least.v : NULL, arg);
}

LM_FUNCTION(image_decode) { return lm_return_tensor(L, AT_LEAST, decode_image); }

/* ---- decode_gif(bytes, name, max_pixels, apply_exif_orientation, allow_corrupt, channels) -> uint8 [N, C, H, W] */

static lm_status decode_gif(lua_State *L, lm_lua *s, void *arg) {
  lm_image im;
  int64_t channels;
  NEED(read_image(L, s, "decode_gif", &im));
  NEED(LM_READ_ARGS(L, s, MODE, "decode_gif", {"channels", LM_ARG_I, &channels}));
  return lm_image_decode_gif(&im, (int)channels, arg);
}

LM_FUNCTION(decode_gif) { return lm_return_tensor(L, MODE, decode_gif); }

/* ---- encode_jpeg(image, quality), encode_png(image, level), encode_webp(image, quality) -> bytes */

typedef struct encoding {
  const char *fn, *option, *format;
  lm_tensor *bytes;
} encoding;

static lm_status encode_image(lua_State *L, lm_lua *s, void *arg) {
  encoding *e = arg;
  lm_tensor *pixels;
  int64_t value;
  NEED(LM_READ_ARGS(L, s, 1, e->fn, {"image", LM_ARG_T, &pixels}, {e->option, LM_ARG_I, &value}));
  return lm_image_encode(e->format, pixels, value < 0 || value > 1000 ? -1 : (int)value, &e->bytes);
}

static int return_encoded(lua_State *L, encoding e) { return lm_return_tensors(L, 2, 1, encode_image, &e, &e.bytes); }

LM_FUNCTION(encode_jpeg) { return return_encoded(L, (encoding){"encode_jpeg", "quality", "jpeg", NULL}); }
LM_FUNCTION(encode_png) { return return_encoded(L, (encoding){"encode_png", "compression_level", "png", NULL}); }
LM_FUNCTION(encode_webp) { return return_encoded(L, (encoding){"encode_webp", "quality", "webp", NULL}); }
