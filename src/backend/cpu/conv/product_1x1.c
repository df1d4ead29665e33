/* 1 x 1 convolutions as products of whole matrices. Channels-last images are matrices already:
 *
 *   forward   y [rows, k] = x [rows, c] times w' [c, k]
 *   input     x [rows, c] = y [rows, k] times w [k, c]
 *   weight    w [k, c] = y' [k, rows] times x [rows, c]
 *
 * with a row for each pixel of y. With a stride, the pixels of x that count are brought together first, or
 * put back among zeros afterwards. */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul/gemm.h"
#include "device/alloc.h"

enum { FEW_ROWS = 1024, MANY_ROWS = 2048 };

static int64_t rows_of(const lm_conv_shape *s) { return s->n * s->oh * s->ow; }
static bool skips(const lm_conv_shape *s) { return s->stride[0] > 1 || s->stride[1] > 1; }

/* Against oneDNN's convolutions with AVX-512, which bring weights into an order of their own: with few rows that
 * shows, and all passes are 1.2 to 1.9 times faster as products. With many rows gradients of weights are 1.1 to 1.3
 * times faster, those of images as fast to 1.15 times if no pixels are skipped; in between either may be. */
bool lm_product_pays(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t rows = rows_of(s);
  if (job->dtype != LM_F32 || job->bias || s->kh != 1 || s->kw != 1 || s->groups != 1) return false;
  if (s->padding[0] != 0 || s->padding[1] != 0 || s->c < 32 || s->k < 32) return false;
  if (rows < FEW_ROWS) return rows > 0;
  if (rows < MANY_ROWS) return false;
  return job->pass == LM_CONV_WEIGHT || (job->pass == LM_CONV_INPUT && !skips(s));
}

/* b [columns, rows] = a' for a [rows, columns]. */
static void transpose(const float *a, int64_t rows, int64_t columns, float *b) {
  enum { TILE = 16 };
#pragma omp parallel for num_threads(lm_cpu_share((double)(rows * columns))) schedule(static)
  for (int64_t i0 = 0; i0 < rows; i0 += TILE)
    for (int64_t j0 = 0; j0 < columns; j0 += TILE)
      for (int64_t j = j0; j < j0 + TILE && j < columns; j++)
        for (int64_t i = i0; i < i0 + TILE && i < rows; i++) b[j * rows + i] = a[i * columns + j];
}

/* Pixels of x that the convolution looks at, side by side. */
static void gather(const lm_conv_shape *s, const float *x, float *packed) {
  const size_t pixel = (size_t)s->c * sizeof(float);
#pragma omp parallel for num_threads(lm_cpu_share(0.5 * (double)(rows_of(s) * s->c))) schedule(static)
  for (int64_t line = 0; line < s->n * s->oh; line++) {
    const float *from = x + (line / s->oh * s->h + line % s->oh * s->stride[0]) * s->w * s->c;
    float *to = packed + line * s->ow * s->c;
    for (int64_t j = 0; j < s->ow; j++) memcpy(to + j * s->c, from + j * s->stride[1] * s->c, pixel);
  }
}

/* Back to where they belong, with zeros between them. */
static void scatter(const lm_conv_shape *s, const float *packed, float *x) {
  const size_t pixel = (size_t)s->c * sizeof(float);
#pragma omp parallel for num_threads(lm_cpu_share(0.5 * (double)(s->n * s->h * s->w * s->c))) schedule(static)
  for (int64_t line = 0; line < s->n * s->h; line++) {
    float *to = x + line * s->w * s->c;
    int64_t i = line % s->h;
    memset(to, 0, (size_t)s->w * pixel);
    if (i % s->stride[0] || i / s->stride[0] >= s->oh) continue;
    const float *from = packed + (line / s->h * s->oh + i / s->stride[0]) * s->ow * s->c;
    for (int64_t j = 0; j < s->ow; j++) memcpy(to + j * s->stride[1] * s->c, from + j * s->c, pixel);
  }
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

lm_status lm_product_conv(const lm_conv_job *job) {
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  const int64_t rows = rows_of(s), c = s->c, k = s->k;
  /* Of two matrices oneDNN's product transposes the narrower one faster. */
  const bool turn = job->pass == LM_CONV_WEIGHT && k > c && rows >= MANY_ROWS;
  const int64_t pixels = skips(s) ? rows * c : 0, weights = turn ? c * k : 0;
  const size_t bytes = (size_t)(pixels + weights) * sizeof(float);
  void *scratch = NULL;
  if (bytes) TRY(lm_device_alloc(job->device, bytes, &scratch));
  float *x = pixels ? scratch : job->x, *y = job->y, *w = weights ? (float *)scratch + pixels : job->w;
  if (pixels && job->pass != LM_CONV_INPUT) gather(s, job->x, x);
  switch (job->pass) {
    case LM_CONV_FORWARD: TRY(multiply(job, rows, k, c, x, false, w, true, y)); break;
    case LM_CONV_INPUT:
      TRY(multiply(job, rows, c, k, y, false, w, false, x));
      if (pixels) scatter(s, x, job->x);
      break;
    case LM_CONV_WEIGHT:
      if (turn) {
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
