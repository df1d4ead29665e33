/* Decodes and encodes PNG by libpng, whose errors leave its functions by longjmp, to a setjmp in our calling function.
 * None of our functions is in between. */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

typedef struct errors { /* libpng's error pointer */
  jmp_buf back;
  bool out_of_memory;
  char text[128];
} errors;

static void jump_with_png_error(png_structp png, png_const_charp text) {
  errors *side = png_get_error_ptr(png);
  snprintf(side->text, sizeof side->text, "%s", text);
  longjmp(side->back, 1);
}

/* Ignores warnings: pixels do not depend on them. */
static void ignore_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

static void *png_malloc_counted(png_structp png, png_alloc_size_t bytes) {
  void *p = lm_malloc(bytes);
  errors *side = png_get_error_ptr(png);
  if (!p && side) side->out_of_memory = true;
  return p;
}

static void png_free_counted(png_structp png, void *p) {
  (void)png;
  lm_free(p);
}

static void jump_out_of_memory(errors *side) {
  side->out_of_memory = true;
  longjmp(side->back, 1);
}

/* Returns the error that was recorded before the jump. */
static lm_status fail_png(errors *side, const char *name) {
  if (side->out_of_memory) return lm_fail_in_file(LM_E_OOM, name, "out of memory");
  return lm_fail_malformed(name, "PNG", LM_NO_OFFSET, "%s", lm_ellipsize(side->text, 200));
}

/* ---- decoding */

enum { STRIP = 16 }; /* rows per call of lm_planes_put */

typedef struct reading {
  errors side;
  png_structp png;
  png_infop info;
  const lm_image *image;
  size_t at;
  uint8_t *rows; /* a strip; for an interlaced image all requested rows, and one more */
} reading;

static void read_png_bytes(png_structp png, png_bytep out, size_t n) {
  reading *r = png_get_io_ptr(png);
  if (n > r->image->nbytes - r->at) png_error(png, "truncated");
  memcpy(out, r->image->bytes + r->at, n);
  r->at += n;
}

/* Skips chunks that change neither pixels nor orientation. */
static void leave_out_texts(png_structp png) {
#ifdef PNG_HANDLE_AS_UNKNOWN_SUPPORTED
  static const png_byte names[] = "tEXt\0zTXt\0iTXt\0sPLT\0hIST\0tIME\0pHYs\0pCAL\0sCAL\0oFFs\0bKGD";
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, names, sizeof names / 5);
#else
  (void)png;
#endif
}

static void open_bytes(reading *r) {
  r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r->side, jump_with_png_error, ignore_warning, NULL,
                                    png_malloc_counted, png_free_counted);
  r->info = r->png ? png_create_info_struct(r->png) : NULL;
  if (!r->info) jump_out_of_memory(&r->side);
  png_set_read_fn(r->png, r, read_png_bytes);
  png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* max_pixels is the limit */
  leave_out_texts(r->png);
  png_read_info(r->png, r->info);
}

typedef struct kind {
  bool palette, color, alpha, transparent; /* alpha: has that channel; transparent: has a transparent color (tRNS) */
} kind;

static kind kind_of(reading *r) {
  int type = png_get_color_type(r->png, r->info);
  return (kind){type == PNG_COLOR_TYPE_PALETTE, (type & PNG_COLOR_MASK_COLOR) != 0, (type & PNG_COLOR_MASK_ALPHA) != 0,
                png_get_valid(r->png, r->info, PNG_INFO_tRNS) != 0};
}

static int find_orientation(reading *r) {
#ifdef PNG_eXIf_SUPPORTED
  png_uint_32 n;
  png_bytep tiff;
  if (png_get_eXIf_1(r->png, r->info, &n, &tiff)) return lm_exif_orientation(tiff, n);
#endif
  (void)r;
  return 1;
}

static lm_status read_png_header(reading *r, lm_image_header *out) {
  if (setjmp(r->side.back)) return fail_png(&r->side, r->image->name);
  open_bytes(r);
  kind k = kind_of(r);
  out->height = png_get_image_height(r->png, r->info);
  out->width = png_get_image_width(r->png, r->info);
  out->channels = (k.color ? 3 : 1) + (k.alpha || k.transparent);
  out->orientation = find_orientation(r);
  return LM_OK;
}

static lm_status header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  lm_status status = read_png_header(&r, out);
  png_destroy_read_struct(&r.png, &r.info, NULL);
  return status;
}

/* Sets libpng's conversions in its order; the weights of gray are torchvision's. */
static void set_conversions(reading *r, int channels) {
  kind k = kind_of(r);
  bool color = channels >= 3, alpha = channels % 2 == 0;
  if (k.palette) png_set_palette_to_rgb(r->png); /* RGB, or RGBA if the palette has transparency */
  if (!k.color && png_get_bit_depth(r->png, r->info) < 8) png_set_expand_gray_1_2_4_to_8(r->png);
  if (k.transparent && alpha) png_set_tRNS_to_alpha(r->png);
  if (png_get_bit_depth(r->png, r->info) == 16) png_set_strip_16(r->png);
  if (!alpha && (k.alpha || k.palette)) png_set_strip_alpha(r->png);
  if (alpha && !k.alpha && !k.transparent) png_set_add_alpha(r->png, 0xffff, PNG_FILLER_AFTER);
  if (k.color && !color) png_set_rgb_to_gray(r->png, PNG_ERROR_ACTION_NONE, 0.2989, 0.587);
  if (!k.color && color) png_set_gray_to_rgb(r->png);
}

static lm_status read_pixels(reading *r, const lm_region *region, const lm_plane_target *to) {
  if (setjmp(r->side.back)) return fail_png(&r->side, r->image->name);
  open_bytes(r);
  set_conversions(r, to->channels);
  int passes = png_set_interlace_handling(r->png);
  png_read_update_info(r->png, r->info);
  int64_t height = png_get_image_height(r->png, r->info), width = png_get_image_width(r->png, r->info);
  size_t row_bytes = png_get_rowbytes(r->png, r->info);
  if (region->y1 > height || region->x1 > width || row_bytes != (size_t)width * (size_t)to->channels) {
    png_error(r->png, "changed since its header was read");
  }
  int64_t buffered = passes > 1 ? region->y1 - region->y0 : STRIP;
  size_t bytes;
  if (__builtin_mul_overflow((size_t)(buffered + 1), row_bytes, &bytes)) bytes = SIZE_MAX;
  r->rows = lm_malloc(bytes);
  if (!r->rows) return LM_E_OOM;
  uint8_t *beside = r->rows + (size_t)buffered * row_bytes;
  for (int pass = 0; pass < passes; pass++) {
    int64_t end = pass + 1 < passes ? height : region->y1;
    for (int64_t y = 0; y < end; y++) {
      int64_t wanted = y - region->y0;
      bool inside = wanted >= 0 && y < region->y1;
      png_read_row(r->png, inside ? r->rows + (size_t)(wanted % buffered) * row_bytes : beside, NULL);
      if (!inside || pass + 1 < passes || (y + 1 < region->y1 && (wanted + 1) % buffered != 0)) continue;
      int64_t n = wanted % buffered + 1;
      lm_planes_put(to, wanted + 1 - n, n, region->x1 - region->x0, r->rows + region->x0 * to->channels, row_bytes,
                    to->channels);
    }
  }
  return LM_OK;
}

static lm_status decode_png(const lm_image *image, const lm_region *region, const lm_plane_target *to) {
  reading r = {.image = image};
  lm_status status = read_pixels(&r, region, to);
  png_destroy_read_struct(&r.png, &r.info, NULL);
  lm_free(r.rows);
  return status;
}

/* ---- encoding */

typedef struct writing {
  errors side;
  png_structp png;
  png_infop info;
  uint8_t *row;
  lm_bytes bytes;
} writing;

static void append_png_bytes(png_structp png, png_bytep data, size_t n) {
  writing *w = png_get_io_ptr(png);
  lm_put(&w->bytes, data, n);
  if (w->bytes.failed) jump_out_of_memory(&w->side);
}

static void flush(png_structp png) { (void)png; }

static lm_status write_pixels(writing *w, const lm_tensor *pixels, int level) {
  static const int types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                              PNG_COLOR_TYPE_RGB_ALPHA};
  if (setjmp(w->side.back)) return fail_png(&w->side, "to be written");
  w->png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &w->side, jump_with_png_error, ignore_warning, NULL,
                                     png_malloc_counted, png_free_counted);
  w->info = w->png ? png_create_info_struct(w->png) : NULL;
  if (!w->info) jump_out_of_memory(&w->side);
  png_set_user_limits(w->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_write_fn(w->png, w, append_png_bytes, flush);
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

static lm_status encode_png(const lm_tensor *pixels, int level, lm_tensor **out) {
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

LM_CODEC(.header = header, .decode = decode_png, .encode = encode_png)
