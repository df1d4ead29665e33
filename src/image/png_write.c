#include "base/mem.h"
#include "base/message.h"
#include "image/png.h"

typedef struct writing {
  lm_png_side side;
  png_structp png;
  png_infop info;
  uint8_t *row;
  lm_bytes bytes;
} writing;

static void put(png_structp png, png_bytep data, size_t n) {
  writing *w = png_get_io_ptr(png);
  lm_put(&w->bytes, data, n);
  if (w->bytes.failed) lm_png_out_of_memory(&w->side);
}

static void flush(png_structp png) { (void)png; }

static lm_status write_pixels(writing *w, const lm_tensor *pixels, int level) {
  static const int types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                              PNG_COLOR_TYPE_RGB_ALPHA};
  if (setjmp(w->side.back)) return lm_png_problem(&w->side, "to be written");
  w->png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &w->side, lm_png_fail, lm_png_warn, NULL, lm_png_malloc,
                                     lm_png_free);
  w->info = w->png ? png_create_info_struct(w->png) : NULL;
  if (!w->info) lm_png_out_of_memory(&w->side);
  png_set_user_limits(w->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_write_fn(w->png, w, put, flush);
  png_set_compression_level(w->png, level);
  png_set_IHDR(w->png, w->info, (png_uint_32)pixels->size[2], (png_uint_32)pixels->size[1], 8,
               types[pixels->size[0] - 1], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(w->png, w->info);
  for (int64_t y = 0; y < pixels->size[1]; y++) {
    lm_planes_row(pixels, y, w->row);
    png_write_row(w->png, w->row);
  }
  png_write_end(w->png, w->info);
  return LM_OK;
}

lm_status lm_image_encode_png(const lm_tensor *pixels, int level, lm_tensor **out) {
  lm_status status = LM_OK;
  writing w = {.png = NULL};
  TRY(lm_pixels_check("encode_png", pixels, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4, PNG_UINT_31_MAX));
  if (level < 0 || level > 9) { return lm_fail_int("encode_png", "compression_level", "from 0 to 9", level); }
  w.row = lm_malloc((size_t)(pixels->size[0] * pixels->size[2]));
  if (!w.row) return LM_E_OOM;
  status = write_pixels(&w, pixels, level);
  png_destroy_write_struct(&w.png, &w.info);
  if (status == LM_OK) status = lm_image_bytes(&w.bytes, out);
done:
  lm_bytes_free(&w.bytes);
  lm_free(w.row);
  return status;
}
