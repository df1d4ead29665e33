/* GIF by giflib (GIF89a specification): the first frame, or all, each drawn over those before it. */
#include <gif_lib.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "image/codec.h"

typedef struct reading {
  const lm_image *image;
  size_t at;
  GifFileType *gif;
  GraphicsControlBlock control; /* of the frame that gif->Image describes */
  int64_t height, width;
  uint8_t *canvas, *before, *line; /* RGBA; the canvas as it was before a frame that is to vanish; a row of one */
  GifColorType background;
} reading;

static int take(GifFileType *gif, GifByteType *out, int n) {
  reading *r = gif->UserData;
  size_t left = r->image->nbytes - r->at, count = (size_t)n < left ? (size_t)n : left;
  memcpy(out, r->image->bytes + r->at, count);
  r->at += count;
  return (int)count;
}

static lm_status problem(const reading *r, int code) {
  const char *name = r->image->name;
  if (code == D_GIF_ERR_NOT_ENOUGH_MEM) return lm_fail_in_file(LM_E_OOM, name, "out of memory");
  bool cut = code == D_GIF_ERR_READ_FAILED || code == D_GIF_ERR_EOF_TOO_SOON || code == D_GIF_ERR_NO_SCRN_DSCR;
  const char *text = cut ? "truncated" : GifErrorString(code);
  return lm_fail_malformed(name, "GIF", LM_NO_OFFSET, "%s", text ? text : "unknown error");
}

/* Reads up to the next frame's pixels; *more is false where the file ends. */
static lm_status next_frame(reading *r, bool *more) {
  r->control = (GraphicsControlBlock){.TransparentColor = NO_TRANSPARENT_COLOR};
  for (*more = false;;) {
    GifRecordType type;
    GifByteType *block;
    int code;
    if (r->at == r->image->nbytes && r->gif->ImageCount > 0) return LM_OK; /* many files lack the last byte */
    if (DGifGetRecordType(r->gif, &type) == GIF_ERROR) return problem(r, r->gif->Error);
    if (type == TERMINATE_RECORD_TYPE) return LM_OK;
    if (type == IMAGE_DESC_RECORD_TYPE) {
      *more = true;
      return DGifGetImageDesc(r->gif) == GIF_ERROR ? problem(r, r->gif->Error) : LM_OK;
    }
    if (DGifGetExtension(r->gif, &code, &block) == GIF_ERROR) return problem(r, r->gif->Error);
    if (code == GRAPHICS_EXT_FUNC_CODE && block) DGifExtensionToGCB(block[0], block + 1, &r->control);
    while (block) {
      if (DGifGetExtensionNext(r->gif, &block) == GIF_ERROR) return problem(r, r->gif->Error);
    }
  }
}

/* Opens a file and reads up to its first frame's pixels. The canvas holds that frame, as in Pillow. */
static lm_status open_bytes(reading *r) {
  int code = 0;
  bool more;
  r->gif = DGifOpen(r, take, &code);
  if (!r->gif) return problem(r, code);
  NEED(next_frame(r, &more));
  const GifImageDesc *d = &r->gif->Image;
  if (!more || d->Width < 1 || d->Height < 1) {
    return lm_fail_malformed(r->image->name, "GIF", LM_NO_OFFSET, "it has no frame");
  }
  r->height = r->gif->SHeight > d->Top + d->Height ? r->gif->SHeight : d->Top + d->Height;
  r->width = r->gif->SWidth > d->Left + d->Width ? r->gif->SWidth : d->Left + d->Width;
  const ColorMapObject *map = r->gif->SColorMap;
  if (map && r->gif->SBackGroundColor < map->ColorCount) r->background = map->Colors[r->gif->SBackGroundColor];
  return LM_OK;
}

static void close_bytes(reading *r) {
  int code;
  if (r->gif) DGifCloseFile(r->gif, &code);
  lm_free(r->canvas);
  lm_free(r->before);
  lm_free(r->line);
  *r = (reading){.image = r->image};
}

lm_status lm_gif_header(const lm_image *image, lm_image_header *out) {
  reading r = {.image = image};
  lm_status status = open_bytes(&r);
  if (status == LM_OK) {
    const GifImageDesc *d = &r.gif->Image;
    bool covered = d->Left == 0 && d->Top == 0 && d->Width == r.width && d->Height == r.height;
    bool alpha = r.control.TransparentColor != NO_TRANSPARENT_COLOR || !covered;
    *out = (lm_image_header){r.height, r.width, alpha ? 4 : 3, 1};
  }
  close_bytes(&r);
  return status;
}

/* Makes a rectangle of the canvas transparent. */
static void clear(reading *r, int64_t top, int64_t left, int64_t height, int64_t width) {
  for (int64_t y = top; y < top + height && y < r->height && left < r->width; y++) {
    uint8_t *p = r->canvas + (y * r->width + left) * 4;
    for (int64_t x = left; x < left + width && x < r->width; x++, p += 4) {
      p[0] = r->background.Red, p[1] = r->background.Green, p[2] = r->background.Blue, p[3] = 0;
    }
  }
}

static lm_status draw_row(reading *r, const ColorMapObject *map, int64_t y) {
  const GifImageDesc *d = &r->gif->Image;
  if (DGifGetLine(r->gif, r->line, d->Width) == GIF_ERROR) return problem(r, r->gif->Error);
  if (y >= r->height || d->Left >= r->width) return LM_OK;
  uint8_t *p = r->canvas + (y * r->width + d->Left) * 4;
  for (int64_t x = 0; x < d->Width && d->Left + x < r->width; x++, p += 4) {
    int c = r->line[x];
    if (c == r->control.TransparentColor) continue;
    GifColorType color = c < map->ColorCount ? map->Colors[c] : (GifColorType){0, 0, 0};
    p[0] = color.Red, p[1] = color.Green, p[2] = color.Blue, p[3] = 255;
  }
  return LM_OK;
}

static lm_status draw_frame(reading *r) {
  static const int first[] = {0, 4, 2, 1, 0}, step[] = {8, 8, 4, 2, 1};
  const GifImageDesc *d = &r->gif->Image;
  const ColorMapObject *map = d->ColorMap ? d->ColorMap : r->gif->SColorMap;
  if (!map) return lm_fail_malformed(r->image->name, "GIF", LM_NO_OFFSET, "a frame has no colors");
  if (!r->canvas) {
    r->canvas = lm_malloc((size_t)(r->height * r->width) * 4);
    r->line = lm_malloc(UINT16_MAX);
    if (!r->canvas || !r->line) return LM_E_OOM;
    clear(r, 0, 0, r->height, r->width);
  }
  if (r->control.DisposalMode == DISPOSE_PREVIOUS) {
    size_t bytes = (size_t)(r->height * r->width) * 4;
    if (!r->before) r->before = lm_malloc(bytes);
    if (!r->before) return LM_E_OOM;
    memcpy(r->before, r->canvas, bytes);
  }
  for (int pass = d->Interlace ? 0 : 4; pass < (d->Interlace ? 4 : 5); pass++) {
    for (int y = first[pass]; y < d->Height; y += step[pass]) NEED(draw_row(r, map, d->Top + y));
  }
  return LM_OK;
}

lm_status lm_gif_decode(const lm_image *image, const lm_region *region, const lm_planes *to) {
  reading r = {.image = image};
  lm_status status;
  TRY(open_bytes(&r));
  if (region->y1 > r.height || region->x1 > r.width) {
    TRY(lm_fail_in_file(LM_E_IO, image->name, "changed since its header was read"));
  }
  TRY(draw_frame(&r));
  for (int64_t y = region->y0; y < region->y1; y++) lm_planes_put_rgba(to, region, y, r.canvas + y * r.width * 4);
done:
  close_bytes(&r);
  return status;
}

/* Counts frames, whose rectangles and canvases together have no more than max_pixels. */
static lm_status count_frames(reading *r, int64_t *frames) {
  int64_t pixels = 0;
  bool more = true;
  for (*frames = 0; more; ++*frames) {
    const GifImageDesc *d = &r->gif->Image;
    int64_t own = (int64_t)d->Width * d->Height, canvas = r->height * r->width;
    pixels += own > canvas ? own : canvas;
    if (pixels > r->image->max_pixels) {
      return lm_fail_in_file(LM_E_IO, r->image->name, "its frames have more pixels than max_pixels (%lld)",
                             (long long)r->image->max_pixels);
    }
    GifByteType *block;
    int size;
    if (DGifGetCode(r->gif, &size, &block) == GIF_ERROR) return problem(r, r->gif->Error);
    while (block) {
      if (DGifGetCodeNext(r->gif, &block) == GIF_ERROR) return problem(r, r->gif->Error);
    }
    NEED(next_frame(r, &more));
  }
  return LM_OK;
}

lm_status lm_image_decode_gif(const lm_image *image, int channels, lm_tensor **out) {
  reading r = {.image = image};
  lm_status status;
  lm_tensor *t = NULL;
  int64_t frames;
  bool more = true;
  TRY(open_bytes(&r));
  TRY(count_frames(&r, &frames));
  close_bytes(&r);
  TRY(open_bytes(&r));
  int64_t size[4] = {frames, channels, r.height, r.width}, plane = r.height * r.width;
  lm_region all = {0, r.height, 0, r.width};
  TRY(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 4, size, LM_CONTIGUOUS, &t));
  for (int64_t i = 0; i < frames && more; i++) {
    TRY(draw_frame(&r));
    lm_planes to = {(uint8_t *)t->data + i * channels * plane, plane, r.width, 1, channels};
    for (int64_t y = 0; y < r.height; y++) {
      lm_planes_put_rgba(&to, &all, y, r.canvas + y * r.width * 4);
    }
    GraphicsControlBlock control = r.control;
    GifImageDesc d = r.gif->Image;
    if (control.DisposalMode == DISPOSE_PREVIOUS) memcpy(r.canvas, r.before, (size_t)plane * 4);
    if (control.DisposalMode == DISPOSE_BACKGROUND) clear(&r, d.Top, d.Left, d.Height, d.Width);
    TRY(next_frame(&r, &more));
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  close_bytes(&r);
  return status;
}
