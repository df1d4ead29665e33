/* Decodes and encodes JPEG by libjpeg-turbo, whose errors leave its functions by longjmp, to a setjmp in our calling
 * function. None of our functions is in between. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h> /* needs stdio.h before it */

#include <jerror.h> /* knows more codes once the library's options are known */

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed (on Debian: libjpeg62-turbo-dev); this is another libjpeg"
#endif

typedef struct errors {
  struct jpeg_error_mgr manager; /* first: libjpeg passes its address back */
  jmp_buf back;
  bool allow_corrupt;
  const char *own; /* reason for our own jump, or NULL */
} errors;

static void jump_to_catch(j_common_ptr jpeg) { longjmp(((errors *)jpeg->err)->back, 1); }

/* Returns true for warnings about damaged pixels. Others concern bytes between segments and unused numbers. */
static bool is_loss(int message) {
  switch (message) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL: return true;
    default: return false;
  }
}

static void count_jpeg_warning(j_common_ptr jpeg, int level) {
  if (level >= 0) return; /* trace messages */
  jpeg->err->num_warnings++;
  if (is_loss(jpeg->err->msg_code) && !((errors *)jpeg->err)->allow_corrupt) jump_to_catch(jpeg);
}

static void ignore_message(j_common_ptr jpeg) { (void)jpeg; }

static void catch_errors(errors *e, j_common_ptr jpeg, bool allow_corrupt) {
  jpeg->err = jpeg_std_error(&e->manager);
  e->manager.error_exit = jump_to_catch;
  e->manager.emit_message = count_jpeg_warning;
  e->manager.output_message = ignore_message;
  e->allow_corrupt = allow_corrupt;
}

/* Jumps; `why` is a string literal for problem. */
static void fail_with(j_common_ptr jpeg, const char *why) {
  ((errors *)jpeg->err)->own = why;
  jump_to_catch(jpeg);
}

/* Returns the error that libjpeg reported before it jumped. */
static lm_status fail_jpeg(j_common_ptr jpeg, const char *name) {
  char text[JMSG_LENGTH_MAX];
  const char *own = ((errors *)jpeg->err)->own;
  if (own) return lm_fail_in_file(LM_E_IO, name, "%s", own);
  int code = jpeg->err->msg_code;
  if (code == JERR_OUT_OF_MEMORY) return lm_fail_in_file(LM_E_OOM, name, "out of memory");
  jpeg->err->format_message(jpeg, text);
  if (code == JWRN_JPEG_EOF || code == JERR_INPUT_EOF)
    return lm_fail_malformed(name, "JPEG", LM_NO_OFFSET, "truncated");
  return lm_fail_malformed(name, "JPEG", LM_NO_OFFSET, "%s", lm_ellipsize(text, JMSG_LENGTH_MAX));
}

enum { STRIP = 16, MAX_SCANS = 500 }; /* rows per read; a progressive file of a few KB could have scans without end */

typedef struct reading {
  struct jpeg_decompress_struct jpeg;
  errors caught;
  struct jpeg_progress_mgr progress;
  const lm_image *image;
  uint8_t *strip; /* STRIP rows */
} reading;

/* ---- the header */

/* Returns the orientation from the first APP1 segment that begins with "Exif"; such segments precede the image. A
 * segment starts with its length in two bytes, which it includes. */
static int find_orientation(const uint8_t *p, size_t n) {
  static const char exif[] = "Exif\0"; /* plus its closing zero */
  size_t at = 2;
  while (at + 4 <= n && p[at] == 0xff) {
    int marker = p[at + 1];
    if (marker == 0xff) { /* a fill byte */
      at++;
      continue;
    }
    size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
    if (marker == 0xda || marker == 0xd9 || length < 2 || length > n - at - 2) break; /* the image data begins */
    const uint8_t *data = p + at + 4;
    if (marker == 0xe1 && length >= 2 + sizeof exif && memcmp(data, exif, sizeof exif) == 0) {
      return lm_exif_orientation(data + sizeof exif, length - 2 - sizeof exif);
    }
    at += 2 + length;
  }
  return 1;
}

static void open_bytes(reading *r) {
  jpeg_create_decompress(&r->jpeg);
  jpeg_mem_src(&r->jpeg, r->image->bytes, (unsigned long)r->image->nbytes);
  jpeg_read_header(&r->jpeg, TRUE);
}

static lm_status read_jpeg_header(reading *r, lm_image_header *out) {
  if (setjmp(r->caught.back)) return fail_jpeg((j_common_ptr)&r->jpeg, r->image->name);
  open_bytes(r);
  out->height = r->jpeg.image_height;
  out->width = r->jpeg.image_width;
  out->channels = r->jpeg.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
  return LM_OK;
}

static lm_status header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  catch_errors(&r.caught, (j_common_ptr)&r.jpeg, image->allow_corrupt);
  lm_status status = read_jpeg_header(&r, out);
  jpeg_destroy_decompress(&r.jpeg);
  out->orientation = find_orientation(image->bytes, image->nbytes);
  return status;
}

/* ---- pixels */

static void watch(j_common_ptr jpeg) {
  if (((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS) fail_with(jpeg, "a JPEG must have at most 500 scans");
}

/* Returns c * k / 255, rounded: Adobe's CMYK is stored inverted. */
static inline uint8_t scale_ink(int c, int k) {
  int v = k * (255 - c) + 128;
  v = ((v >> 8) + v) >> 8;
  return (uint8_t)(k > v ? k - v : 0);
}

/* Converts in place, four bytes a pixel before and after. The weights are ITU-R 601's, in 1/65536. */
static void cmyk_to_rgb(uint8_t *p, int64_t pixels, bool gray) {
  for (int64_t i = 0; i < pixels; i++, p += 4) {
    int r = scale_ink(p[0], p[3]), g = scale_ink(p[1], p[3]), b = scale_ink(p[2], p[3]);
    p[0] = (uint8_t)(gray ? (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16 : r);
    p[1] = (uint8_t)g;
    p[2] = (uint8_t)b;
  }
}

static lm_status read_pixels(reading *r, int scale, const lm_region *region, const lm_plane_target *to) {
  j_decompress_ptr jpeg = &r->jpeg;
  if (setjmp(r->caught.back)) return fail_jpeg((j_common_ptr)jpeg, r->image->name);
  open_bytes(r);
  bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  bool gray = to->channels == 1;
  jpeg->out_color_space = cmyk ? JCS_CMYK : gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = (unsigned)scale;
  r->progress.progress_monitor = watch;
  jpeg->progress = &r->progress;
  jpeg_start_decompress(jpeg);
  int64_t first = 0;
  if (region->y1 > jpeg->output_height || region->x1 > jpeg->output_width) {
    fail_with((j_common_ptr)jpeg, "changed since its header was read");
  }
  if (region->x1 - region->x0 < jpeg->output_width) {
    int margin = jpeg->max_h_samp_factor * 2; /* columns on each side: smooth chroma depends on its neighbors */
    JDIMENSION x = region->x0 > margin ? (JDIMENSION)(region->x0 - margin) : 0;
    JDIMENSION end = jpeg->output_width - region->x1 > margin ? (JDIMENSION)(region->x1 + margin) : jpeg->output_width;
    JDIMENSION width = end - x;
    jpeg_crop_scanline(jpeg, &x, &width);
    first = region->x0 - x;
  }
  size_t row_bytes = (size_t)jpeg->output_width * (size_t)jpeg->output_components;
  r->strip = lm_malloc(STRIP * row_bytes);
  if (!r->strip) return LM_E_OOM;
  if (region->y0 > 0) jpeg_skip_scanlines(jpeg, (JDIMENSION)region->y0);
  for (int64_t y = region->y0; y < region->y1;) {
    JSAMPROW rows[STRIP];
    int n = region->y1 - y < STRIP ? (int)(region->y1 - y) : STRIP, done = 0;
    for (int i = 0; i < n; i++) rows[i] = r->strip + (size_t)i * row_bytes;
    while (done < n) done += (int)jpeg_read_scanlines(jpeg, rows + done, (JDIMENSION)(n - done));
    if (cmyk) cmyk_to_rgb(r->strip, n * (int64_t)jpeg->output_width, gray);
    lm_planes_put(to, y - region->y0, n, region->x1 - region->x0, r->strip + first * jpeg->output_components, row_bytes,
                  jpeg->output_components);
    y += n;
  }
  return LM_OK;
}

static lm_status decode_jpeg(const lm_image *image, int scale, const lm_region *region, const lm_plane_target *to) {
  reading r = {.image = image};
  catch_errors(&r.caught, (j_common_ptr)&r.jpeg, image->allow_corrupt);
  lm_status status = read_pixels(&r, scale, region, to);
  jpeg_destroy_decompress(&r.jpeg);
  lm_free(r.strip);
  return status;
}

/* ---- encoding */

enum { PIECE = 1 << 12 };

typedef struct writing {
  struct jpeg_compress_struct jpeg;
  errors caught;
  struct jpeg_destination_mgr target;
  uint8_t piece[PIECE];
  uint8_t *row;
  lm_bytes bytes;
} writing;

static writing *jpeg_writing(j_compress_ptr jpeg) { return (writing *)jpeg; }

static void begin_piece(j_compress_ptr jpeg) {
  jpeg->dest->next_output_byte = jpeg_writing(jpeg)->piece;
  jpeg->dest->free_in_buffer = PIECE;
}

static boolean end_piece(j_compress_ptr jpeg) { /* called when the piece is full, whatever free_in_buffer says */
  lm_put(&jpeg_writing(jpeg)->bytes, jpeg_writing(jpeg)->piece, PIECE);
  begin_piece(jpeg);
  return TRUE;
}

static void end_file(j_compress_ptr jpeg) {
  lm_put(&jpeg_writing(jpeg)->bytes, jpeg_writing(jpeg)->piece, PIECE - jpeg->dest->free_in_buffer);
}

static lm_status write_pixels(writing *w, const lm_tensor *pixels, int quality) {
  j_compress_ptr jpeg = &w->jpeg;
  if (setjmp(w->caught.back)) return fail_jpeg((j_common_ptr)jpeg, "to be written");
  jpeg_create_compress(jpeg);
  w->target = (struct jpeg_destination_mgr){
      .init_destination = begin_piece, .empty_output_buffer = end_piece, .term_destination = end_file};
  jpeg->dest = &w->target;
  jpeg->image_height = (JDIMENSION)pixels->size[1];
  jpeg->image_width = (JDIMENSION)pixels->size[2];
  jpeg->input_components = (int)pixels->size[0];
  jpeg->in_color_space = pixels->size[0] == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(jpeg);
  jpeg_set_quality(jpeg, quality, TRUE);
  jpeg_start_compress(jpeg, TRUE);
  for (int64_t y = 0; y < pixels->size[1]; y++) {
    lm_planes_row(pixels, y, w->row);
    jpeg_write_scanlines(jpeg, &w->row, 1);
  }
  jpeg_finish_compress(jpeg);
  return LM_OK;
}

static lm_status encode_jpeg(const lm_tensor *pixels, int quality, lm_tensor **out) {
  lm_status status = LM_OK;
  writing w = {0};
  int64_t most = JPEG_MAX_DIMENSION;
  catch_errors(&w.caught, (j_common_ptr)&w.jpeg, false);
  TRY(lm_pixels_check("encode_jpeg", pixels, 1 << 1 | 1 << 3, most));
  if (quality < 1 || quality > 100) { return lm_fail_int("encode_jpeg", "quality", "from 1 to 100", quality); }
  w.row = lm_malloc((size_t)(pixels->size[0] * pixels->size[2]));
  if (!w.row) return LM_E_OOM;
  status = write_pixels(&w, pixels, quality);
  jpeg_destroy_compress(&w.jpeg);
  if (status == LM_OK) status = lm_image_bytes(&w.bytes, out);
done:
  lm_bytes_free(&w.bytes);
  lm_free(w.row);
  return status;
}

LM_CODEC(.header = header, .decode_scaled = decode_jpeg, .encode = encode_jpeg)
