#include "base/mem.h"
#include "base/message.h"
#include "image/jpeg.h"

enum { PIECE = 1 << 12 };

typedef struct writing {
  struct jpeg_compress_struct jpeg;
  lm_jpeg_errors errors;
  struct jpeg_destination_mgr target;
  uint8_t piece[PIECE];
  uint8_t *row;
  lm_bytes bytes;
} writing;

static writing *of(j_compress_ptr jpeg) { return (writing *)jpeg; }

static void begin_piece(j_compress_ptr jpeg) {
  jpeg->dest->next_output_byte = of(jpeg)->piece;
  jpeg->dest->free_in_buffer = PIECE;
}

static boolean end_piece(j_compress_ptr jpeg) { /* called when the piece is full, whatever free_in_buffer says */
  lm_put(&of(jpeg)->bytes, of(jpeg)->piece, PIECE);
  begin_piece(jpeg);
  return TRUE;
}

static void end_file(j_compress_ptr jpeg) {
  lm_put(&of(jpeg)->bytes, of(jpeg)->piece, PIECE - jpeg->dest->free_in_buffer);
}

static lm_status write_pixels(writing *w, const lm_tensor *pixels, int quality) {
  j_compress_ptr jpeg = &w->jpeg;
  if (setjmp(w->errors.back)) return lm_jpeg_problem((j_common_ptr)jpeg, "to be written");
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

lm_status lm_image_encode_jpeg(const lm_tensor *pixels, int quality, lm_tensor **out) {
  lm_status status = LM_OK;
  writing w = {0};
  int64_t most = JPEG_MAX_DIMENSION;
  lm_jpeg_catch(&w.errors, (j_common_ptr)&w.jpeg, false);
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
