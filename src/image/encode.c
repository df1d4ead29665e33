/* Checks the pixels to encode, and wraps an encoded file's bytes as a tensor. */
#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

lm_status lm_pixels_check(const char *who, const lm_tensor *pixels, unsigned channels, int64_t most) {
  if (pixels->dtype != LM_U8) {
    return lm_remedy(lm_fail_dtype(who, "image", "uint8", lm_dtype_name(pixels->dtype)),
                     "convert one in [0, 1] with image:mul(255):round():to(\"uint8\")");
  }
  if (LM_DEVICE_KIND(pixels->device) != LM_CPU) {
    return lm_fail(LM_E_DEVICE, "%s: image must be on cpu, got %s; move it with :cpu()", who,
                   lm_device_name(pixels->device));
  }
  if (pixels->ndim != 3 || pixels->size[0] > 4 || !(channels >> pixels->size[0] & 1)) {
    const char *expected = channels == (1 << 1 | 1 << 3)   ? "[C, H, W] with C of 1 or 3"
                           : channels == (1 << 3 | 1 << 4) ? "[C, H, W] with C of 1, 3 or 4"
                                                           : "[C, H, W] with C from 1 to 4";
    return lm_fail_shape(who, "image", expected, lm_shape_of(pixels));
  }
  for (int d = 1; d <= 2; d++) {
    if (pixels->size[d] < 1 || pixels->size[d] > most) {
      const char *expected = lm_text("[C, H, W] with H and W from 1 to %lld", (long long)most);
      return lm_fail_shape(who, "image", expected, lm_shape_of(pixels));
    }
  }
  return LM_OK;
}

static void free_bytes(void *data) { lm_free(data); }

lm_status lm_image_bytes(lm_bytes *b, lm_tensor **out) {
  if (b->failed) {
    lm_bytes_free(b);
    return lm_fail(LM_E_OOM, "out of memory: encoding an image");
  }
  int64_t n = (int64_t)b->n;
  char *data = b->data;
  *b = (lm_bytes){0};
  return lm_tensor_foreign(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &n, data, (size_t)n, free_bytes, data, out);
}
