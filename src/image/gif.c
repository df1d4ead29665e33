/* Decodes GIF by giflib (GIF89a specification): the first frame, or all, each drawn over those before it. */
#include <gif_lib.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

typedef struct reading {
  const lm_image *image;
  size_t at;
  GifFileType *gif;
  GraphicsControlBlock control; /* belongs to the frame in gif->Image */
  int64_t height, width;
  uint8_t *canvas, *before, *line; /* RGBA; its copy before a frame to be undone; a row of a frame */
  uint8_t background[4];
} reading;

static int read_gif_bytes(GifFileType *gif, GifByteType *out, int n) {
  reading *r = gif->UserData;
  size_t left = r->image->nbytes - r->at, count = (size_t)n < left ? (size_t)n : left;
  memcpy(out, r->image->bytes + r->at, count);
  r->at += count;
  return (int)count;
}

static lm_status fail_gif(const reading *r, int code) {
  if (code == D_GIF_ERR_NOT_ENOUGH_MEM) return lm_fail_in_file(LM_E_OOM, r->image->name, "out of memory");
  bool cut = code == D_GIF_ERR_READ_FAILED || code == D_GIF_ERR_EOF_TOO_SOON || code == D_GIF_ERR_NO_SCRN_DSCR;
  const char *text = cut ? "truncated" : GifErrorString(code);
  return lm_fail_malformed(r->image->name, "GIF", LM_NO_OFFSET, "%s", text ? text : "unknown error");
}

#define GIF_NEED(call) \
  if ((call) == GIF_ERROR) return fail_gif(r, r->gif->Error)

/* Reads up to the next frame's pixels; *more is false at the file's end. */
static lm_status next_frame(reading *r, bool *more) {
  r->control = (GraphicsControlBlock){.TransparentColor = NO_TRANSPARENT_COLOR};
  for (*more = false;;) {
    GifRecordType type;
    GifByteType *block;
    int code;
    if (r->at == r->image->nbytes && r->gif->ImageCount > 0) return LM_OK; /* many files lack the terminator byte */
    GIF_NEED(DGifGetRecordType(r->gif, &type));
    if (type == TERMINATE_RECORD_TYPE) return LM_OK;
    if (type == IMAGE_DESC_RECORD_TYPE) {
      GIF_NEED(DGifGetImageDesc(r->gif));
      *more = true;
      return LM_OK;
    }
    GIF_NEED(DGifGetExtension(r->gif, &code, &block));
    if (code == GRAPHICS_EXT_FUNC_CODE && block) DGifExtensionToGCB(block[0], block + 1, &r->control);
    while (block) GIF_NEED(DGifGetExtensionNext(r->gif, &block));
  }
}

/* Opens a file and reads up to its first frame's pixels. Enlarges the canvas to contain that frame, as Pillow does. */
static lm_status open_bytes(reading *r) {
  int code = 0;
  bool more;
  r->gif = DGifOpen(r, read_gif_bytes, &code);
  if (!r->gif) return fail_gif(r, code);
  NEED(next_frame(r, &more));
  const GifImageDesc *d = &r->gif->Image;
  if (!more || d->Width < 1 || d->Height < 1) return fail_gif(r, D_GIF_ERR_NO_IMAG_DSCR);
  r->height = r->gif->SHeight > d->Top + d->Height ? r->gif->SHeight : d->Top + d->Height;
  r->width = r->gif->SWidth > d->Left + d->Width ? r->gif->SWidth : d->Left + d->Width;
  const ColorMapObject *map = r->gif->SColorMap;
  if (map && r->gif->SBackGroundColor < map->ColorCount) {
    memcpy(r->background, &map->Colors[r->gif->SBackGroundColor], 3);
  }
  return LM_OK;
}

static lm_status close_bytes(reading *r, lm_status status) {
  if (r->gif) DGifCloseFile(r->gif, &(int){0});
  lm_free(r->canvas);
  lm_free(r->before);
  lm_free(r->line);
  return status;
}

static lm_status read_gif_header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  lm_status status = open_bytes(&r);
  if (status == LM_OK) {
    bool covered = r.gif->Image.Width == r.width && r.gif->Image.Height == r.height;
    bool alpha = r.control.TransparentColor != NO_TRANSPARENT_COLOR || !covered;
    *out = (lm_image_header){r.height, r.width, alpha ? 4 : 3, 1};
  }
  return close_bytes(&r, status);
}

/* Returns row y of the frame within the canvas and its n pixels; NULL and 0 for a row outside. */
static uint8_t *row_of(const reading *r, int64_t y, int64_t *n) {
  const GifImageDesc *d = &r->gif->Image;
  int64_t left = r->width - d->Left;
  *n = d->Top + y >= r->height || left < 0 ? 0 : left < d->Width ? left : d->Width;
  return *n ? r->canvas + ((d->Top + y) * r->width + d->Left) * 4 : NULL;
}

static lm_status draw_frame(reading *r) {
  static const int first[] = {0, 4, 2, 1, 0}, step[] = {8, 8, 4, 2, 1};
  const GifImageDesc *d = &r->gif->Image;
  const ColorMapObject *map = d->ColorMap ? d->ColorMap : r->gif->SColorMap;
  size_t bytes = (size_t)(r->height * r->width) * 4;
  if (!map) return fail_gif(r, D_GIF_ERR_NO_COLOR_MAP);
  if (!r->canvas) {
    r->canvas = lm_malloc(bytes), r->before = lm_malloc(bytes), r->line = lm_malloc(UINT16_MAX);
    if (!r->canvas || !r->before || !r->line) return LM_E_OOM;
    for (size_t i = 0; i < bytes; i += 4) memcpy(r->canvas + i, r->background, 4);
  }
  if (r->control.DisposalMode == DISPOSE_PREVIOUS) memcpy(r->before, r->canvas, bytes);
  for (int pass = d->Interlace ? 0 : 4; pass < (d->Interlace ? 4 : 5); pass++) {
    for (int y = first[pass]; y < d->Height; y += step[pass]) {
      int64_t n;
      uint8_t *p = row_of(r, y, &n);
      GIF_NEED(DGifGetLine(r->gif, r->line, d->Width));
      for (int64_t x = 0; x < n; x++, p += 4) {
        int c = r->line[x];
        if (c == r->control.TransparentColor) continue;
        GifColorType color = c < map->ColorCount ? map->Colors[c] : (GifColorType){0, 0, 0};
        p[0] = color.Red, p[1] = color.Green, p[2] = color.Blue, p[3] = 255;
      }
    }
  }
  return LM_OK;
}

static lm_status decode_gif(const lm_image *image, const lm_region *region, const lm_plane_target *to) {
  reading r = {.image = image};
  lm_status status;
  TRY(open_bytes(&r));
  if (r.height != region->height || r.width != region->width) TRY(fail_gif(&r, D_GIF_ERR_NO_SCRN_DSCR));
  TRY(draw_frame(&r));
  lm_planes_put_rgba(to, region, r.canvas);
done:
  return close_bytes(&r, status);
}

static lm_status decode_frames(const lm_image *image, int channels, lm_tensor **out) {
  reading r = {.image = image};
  lm_status status;
  lm_bytes frames = {0};
  uint8_t *frame = NULL;
  TRY(open_bytes(&r));
  int64_t plane = r.height * r.width, pixels = 0, n;
  frame = lm_malloc((size_t)(plane * channels));
  if (!frame) TRY(LM_E_OOM);
  for (bool more = true; more;) {
    const GifImageDesc *d = &r.gif->Image;
    pixels += plane > (int64_t)d->Width * d->Height ? plane : (int64_t)d->Width * d->Height;
    if (pixels > image->max_pixels) {
      TRY(lm_fail_in_file(LM_E_IO, image->name, "its frames have more pixels than max_pixels (%lld)",
                          (long long)image->max_pixels));
    }
    TRY(draw_frame(&r));
    lm_planes_put_rgba(&(lm_plane_target){frame, plane, r.width, 1, channels},
                       &(lm_region){0, r.height, 0, r.width, r.height, r.width}, r.canvas);
    lm_put(&frames, frame, (size_t)(plane * channels));
    if (r.control.DisposalMode == DISPOSE_PREVIOUS) memcpy(r.canvas, r.before, (size_t)plane * 4);
    for (int64_t y = 0; r.control.DisposalMode == DISPOSE_BACKGROUND && y < d->Height; y++) {
      uint8_t *p = row_of(&r, y, &n);
      for (int64_t x = 0; x < n; x++) memcpy(p + 4 * x, r.background, 4);
    }
    TRY(next_frame(&r, &more));
  }
  status = lm_image_bytes(&frames, out);
done:
  lm_bytes_free(&frames);
  lm_free(frame);
  return close_bytes(&r, status);
}

LM_CODEC(.header = read_gif_header, .decode = decode_gif, .decode_frames = decode_frames)
