/* 1 x 1 convolutions as products of whole matrices. Channels-last images are matrices already:
 *
 *   forward   y [rows, k] = x [rows, c] times w' [c, k]
 *   input     x [rows, c] = y [rows, k] times w [k, c]
 *   weight    w [k, c] = y' [k, rows] times x [rows, c]
 *
 * with a row for each pixel of y. With a stride, the pixels of x that count are brought together first, or
 * put back among zeros afterwards. So are those under a larger kernel that skips pixels, for its weights alone:
 *
 *   weight    w [k, kh kw c] = y' [k, rows] times patches of x [rows, kh kw c] */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul/gemm.h"
#include "device/alloc.h"

enum { FEW_ROWS = 1024, MANY_ROWS = 1536, FEW_PATCHES = 256, PATCHES_BYTES = 2 << 20 };

static int64_t rows_of(const lm_conv_shape *s) { return s->n * s->oh * s->ow; }
static bool skips(const lm_conv_shape *s) { return s->stride[0] > 1 || s->stride[1] > 1; }

/* Against oneDNN's convolutions with AVX-512, which bring weights into an order of their own: with few rows that
 * shows, and all passes are 1.2 to 1.9 times faster as products. With many rows gradients of weights are 1.1 to 1.3
 * times faster, those of images as fast to 1.15 times if no pixels are skipped; in between either may be. Gradients of
 * larger kernels that skip pixels are 1.15 to 1.6 times faster, the more the fewer pixels there are. */
bool lm_product_is_faster(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t rows = rows_of(s);
  if (job->dtype != LM_F32 || job->bias || s->groups != 1 || s->c < 32 || s->k < 32) return false;
  if (s->kh != 1 || s->kw != 1) return job->pass == LM_CONV_WEIGHT && skips(s) && rows >= FEW_PATCHES;
  if (s->padding[0] != 0 || s->padding[1] != 0) return false;
  if (rows < FEW_ROWS) return rows > 0;
  if (rows < MANY_ROWS) return false;
  return job->pass == LM_CONV_WEIGHT || (job->pass == LM_CONV_INPUT && !skips(s));
}

typedef struct transposing {
  const float *a;
  int64_t rows, columns;
  float *b;
} transposing;

enum { TILE = 16 };

static void transpose_tiles(void *ctx, int64_t first, int64_t last) {
  const transposing *t = ctx;
  for (int64_t i0 = first * TILE; i0 < last * TILE; i0 += TILE)
    for (int64_t j0 = 0; j0 < t->columns; j0 += TILE)
      for (int64_t j = j0; j < j0 + TILE && j < t->columns; j++)
        for (int64_t i = i0; i < i0 + TILE && i < t->rows; i++) t->b[j * t->rows + i] = t->a[i * t->columns + j];
}

/* b [columns, rows] = a' for a [rows, columns]. */
static void transpose(const float *a, int64_t rows, int64_t columns, float *b) {
  lm_parallel((rows + TILE - 1) / TILE, (double)(rows * columns), 0, transpose_tiles,
              &(transposing){a, rows, columns, b});
}

/* Pixels of images x, and those of them that a convolution looks at, packed. */
typedef struct moving {
  const lm_conv_shape *s;
  const float *from;
  float *to;
  int64_t first_row; /* of patches */
} moving;

/* Pixels of x that the convolution looks at, side by side. */
static void gather_lines(void *ctx, int64_t first, int64_t last) {
  const moving *m = ctx;
  const lm_conv_shape *s = m->s;
  for (int64_t line = first; line < last; line++) {
    const float *from = m->from + (line / s->oh * s->h + line % s->oh * s->stride[0]) * s->w * s->c;
    float *to = m->to + line * s->ow * s->c;
    for (int64_t j = 0; j < s->ow; j++)
      memcpy(to + j * s->c, from + j * s->stride[1] * s->c, (size_t)s->c * sizeof(float));
  }
}

/* Back to where they belong, with zeros between them. */
static void scatter_lines(void *ctx, int64_t first, int64_t last) {
  const moving *m = ctx;
  const lm_conv_shape *s = m->s;
  const size_t pixel = (size_t)s->c * sizeof(float);
  for (int64_t line = first; line < last; line++) {
    float *to = m->to + line * s->w * s->c;
    int64_t i = line % s->h;
    memset(to, 0, (size_t)s->w * pixel);
    if (i % s->stride[0] || i / s->stride[0] >= s->oh) continue;
    const float *from = m->from + (line / s->h * s->oh + i / s->stride[0]) * s->ow * s->c;
    for (int64_t j = 0; j < s->ow; j++) memcpy(to + j * s->stride[1] * s->c, from + j * s->c, pixel);
  }
}

/* Pixels of x under the kernel, for rows of y from first_row on: [rows, kh, kw, c]; zeros beyond the image. */
static void gather_patches(void *ctx, int64_t first, int64_t last) {
  const moving *m = ctx;
  const lm_conv_shape *s = m->s;
  const size_t pixel = (size_t)s->c * sizeof(float);
  for (int64_t index = first; index < last; index++) {
    float *patch = m->to + index * s->kh * s->kw * s->c;
    int64_t row = m->first_row + index;
    const float *image = m->from + row / (s->oh * s->ow) * s->h * s->w * s->c;
    const int64_t top = row / s->ow % s->oh * s->stride[0] - s->padding[0];
    const int64_t left = row % s->ow * s->stride[1] - s->padding[1];
    for (int64_t i = 0; i < s->kh; i++)
      for (int64_t j = 0; j < s->kw; j++, patch += s->c) {
        const int64_t at_y = top + i * s->dilation[0], at_x = left + j * s->dilation[1];
        if (at_y < 0 || at_y >= s->h || at_x < 0 || at_x >= s->w)
          memset(patch, 0, pixel);
        else
          memcpy(patch, image + (at_y * s->w + at_x) * s->c, pixel);
      }
  }
}

/* w [k, kh kw, c] permuted to [k, c, kh kw]. */
static void permute_weights(void *ctx, int64_t first, int64_t last) {
  const moving *m = ctx;
  const lm_conv_shape *s = m->s;
  const int64_t taps = s->kh * s->kw, depth = taps * s->c;
  for (int64_t k = first; k < last; k++)
    for (int64_t i = 0; i < s->c; i++)
      for (int64_t t = 0; t < taps; t++) m->to[k * depth + i * taps + t] = m->from[k * depth + t * s->c + i];
}

/* c [m, n] = a b, where a [m, k] or, `ta`, a' [k, m] and b likewise lie dense in memory. */
static lm_status multiply(const lm_conv_job *job, int64_t m, int64_t n, int64_t k, const float *a, bool ta,
                          const float *b, bool tb, float *c) {
  return lm_cpu_gemm(&(lm_cpu_gemm_job){.dtype = LM_F32,
                                        .device = job->device,
                                        .batch = 1,
                                        .m = m,
                                        .n = n,
                                        .k = k,
                                        .ta = ta,
                                        .tb = tb,
                                        .a = a,
                                        .lda = ta ? m : k,
                                        .b = b,
                                        .ldb = tb ? k : n,
                                        .c = c,
                                        .ldc = n,
                                        .alpha = 1});
}

/* The weights' gradient of a kernel of several pixels: patches in parts that fit into a cache, then w [k, kh kw, c]
 * permuted to [k, c, kh kw]. */
static lm_status patches_weight(const lm_conv_job *job) {
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  const int64_t rows = rows_of(s), depth = s->kh * s->kw * s->c;
  int64_t chunk = PATCHES_BYTES / (depth * (int64_t)sizeof(float));
  chunk = chunk < FEW_PATCHES ? FEW_PATCHES : chunk > rows ? rows : chunk;
  const size_t bytes = (size_t)((chunk + s->k) * depth) * sizeof(float);
  void *scratch = NULL;
  TRY(lm_device_alloc(job->device, bytes, &scratch));
  float *patches = scratch, *w = patches + chunk * depth;
  for (int64_t from = 0; from < rows; from += chunk) {
    const int64_t n = rows - from < chunk ? rows - from : chunk;
    lm_parallel(n, 0.5 * (double)(n * depth), 0, gather_patches, &(moving){s, job->x, patches, from});
    TRY(lm_cpu_gemm(&(lm_cpu_gemm_job){.dtype = LM_F32,
                                       .device = job->device,
                                       .batch = 1,
                                       .m = s->k,
                                       .n = depth,
                                       .k = n,
                                       .ta = true,
                                       .a = (const float *)job->y + from * s->k,
                                       .lda = s->k,
                                       .b = patches,
                                       .ldb = depth,
                                       .c = w,
                                       .ldc = depth,
                                       .alpha = 1,
                                       .beta = from > 0}));
  }
  lm_parallel(s->k, (double)(s->k * depth), 0, permute_weights, &(moving){s, w, job->w, 0});
done:
  if (scratch) lm_device_free(job->device, scratch, bytes);
  return status;
}

lm_status lm_product_conv(const lm_conv_job *job) {
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  if (s->kh * s->kw > 1) return patches_weight(job);
  const int64_t rows = rows_of(s), c = s->c, k = s->k;
  /* Of two matrices oneDNN's product transposes the narrower one faster. */
  const bool transposes = job->pass == LM_CONV_WEIGHT && k > c && rows >= MANY_ROWS;
  const int64_t pixels = skips(s) ? rows * c : 0, weights = transposes ? c * k : 0;
  const size_t bytes = (size_t)(pixels + weights) * sizeof(float);
  void *scratch = NULL;
  if (bytes) TRY(lm_device_alloc(job->device, bytes, &scratch));
  float *x = pixels ? scratch : job->x, *y = job->y, *w = weights ? (float *)scratch + pixels : job->w;
  if (pixels && job->pass != LM_CONV_INPUT)
    lm_parallel(s->n * s->oh, 0.5 * (double)pixels, 0, gather_lines, &(moving){s, job->x, x, 0});
  switch (job->pass) {
    case LM_CONV_FORWARD: TRY(multiply(job, rows, k, c, x, false, w, true, y)); break;
    case LM_CONV_INPUT:
      TRY(multiply(job, rows, c, k, y, false, w, false, x));
      if (pixels)
        lm_parallel(s->n * s->h, 0.5 * (double)(s->n * s->h * s->w * c), 0, scatter_lines, &(moving){s, x, job->x, 0});
      break;
    case LM_CONV_WEIGHT:
      if (transposes) {
        TRY(multiply(job, c, k, rows, x, true, y, false, w));
        transpose(w, c, k, job->w);
      } else {
        TRY(multiply(job, k, c, rows, y, true, x, false, w));
      }
      break;
  }
done:
  if (scratch) lm_device_free(job->device, scratch, bytes);
  return status;
}
