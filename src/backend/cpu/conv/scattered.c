/* Computes the gradient of x whose channels fill vectors badly: multiplies rows of y by all taps and channels at once,
 *
 *   [n oh ow, kh kw c] = y [n oh ow, k] times w [k, kh kw c],
 *
 * which fill vectors well. A piece at a time, which stays in the L2 cache, is added to the pixels under the kernel. One
 * thread computes a unit of images. The shape alone decides the terms of each sum and their order. */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gathered.h"
#include "backend/cpu/matmul/gemm.h"
#include "backend/cpu/memory.h"

enum { PIECE_BYTES = 640 << 10, LEAST_IMAGES = 16, ADDING = 16 /* terms of a product that take as long */ };

typedef struct plan {
  const lm_conv_job *job;
  const struct lm_gathered_loops *loops;
  const char *weights; /* [k, kh kw c] */
  int64_t size;        /* bytes of an element */
  int64_t columns;     /* kh kw c */
  int64_t images;      /* images of a unit */
  int64_t lines;       /* lines of y in a piece */
} plan;

bool lm_scattered_takes(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  if (job->pass != LM_CONV_INPUT || (job->dtype != LM_F32 && job->dtype != LM_F64) || s->groups != 1) return false;
  const int64_t filled = lm_round_up(s->c, lm_gathered_loops_of(job->dtype)->width / 2);
  return s->kh * s->kw > 1 && s->c > 0 && s->n >= LEAST_IMAGES && s->oh * s->ow > 0 &&
         s->c * (s->k + ADDING) < filled * s->k;
}

/* Adds the products `row` [kh, kw, c] of pixel (i, j) of y to the pixels of x that they belong to. */
static void add_pixel(const plan *p, const char *row, int64_t i, int64_t j, char *image) {
  const lm_conv_shape *s = &p->job->shape;
  const int64_t top = i * s->stride[0] - s->padding[0], left = j * s->stride[1] - s->padding[1];
  const bool neighbors = s->dilation[1] == 1;
  const int64_t first = neighbors ? lm_max(0, -left) : 0, last = neighbors ? lm_min(s->kw, s->w - left) : s->kw;
  for (int64_t r = 0; r < s->kh; r++) {
    const int64_t y = top + r * s->dilation[0];
    if (y < 0 || y >= s->h) continue;
    for (int64_t t = first, taps; t < last; t += taps) {
      const int64_t x = left + t * s->dilation[1];
      taps = neighbors ? last - first : 1;
      if (x >= 0 && x < s->w)
        p->loops->add(image + (y * s->w + x) * s->c * p->size, row + (r * s->kw + t) * s->c * p->size, taps * s->c);
    }
  }
}

static void compute_units(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t image = s->h * s->w * s->c * p->size;
  char *products = lm_scratch(), *x = p->job->x;
  for (int64_t n = first * p->images; n < lm_min(s->n, last * p->images); n++) memset(x + n * image, 0, (size_t)image);
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t end = lm_min(s->n, (unit + 1) * p->images) * s->oh;
    for (int64_t from = unit * p->images * s->oh, to; from < end; from = to) {
      to = lm_min(end, from + p->lines);
      const char *y = (const char *)p->job->y + from * s->ow * s->k * p->size;
      lm_cpu_gemm_job job =
          lm_cpu_gemm_job_of(p->job->dtype, (to - from) * s->ow, p->columns, s->k, 1, lm_gemm_matrix_of(y, s->k, false),
                             lm_gemm_matrix_of(p->weights, p->columns, false), 0, products, p->columns);
      job.alone = true;
      const lm_status status = lm_cpu_gemm(&job);
      if (status != LM_OK) return lm_parallel_note(status);
      const char *row = products;
      for (int64_t line = from; line < to; line++)
        for (int64_t j = 0; j < s->ow; j++, row += p->columns * p->size)
          add_pixel(p, row, line % s->oh, j, x + line / s->oh * image);
    }
  }
}

lm_status lm_scattered_conv(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t size = (int64_t)lm_dtype_size(job->dtype), taps = s->kh * s->kw, columns = taps * s->c;
  const int64_t line = s->ow * columns * size;
  LM_WORKSPACE(char, weights, s->k *columns *size);
  for (int64_t k = 0, at = 0; k < s->k; k++)
    for (int64_t t = 0; t < taps; t++)
      for (int64_t c = 0; c < s->c; c++, at++)
        memcpy(weights + at * size, (const char *)job->w + ((k * s->c + c) * taps + t) * size, (size_t)size);
  plan p = {
      .job = job, .loops = lm_gathered_loops_of(job->dtype), .weights = weights, .size = size, .columns = columns};
  p.images = lm_max(1, PIECE_BYTES / (s->oh * line));
  p.lines = lm_max(1, PIECE_BYTES / line);
  return lm_parallel(lm_ceil_div(s->n, p.images),
                     (double)(s->n * s->oh * s->ow) * (double)(s->k * columns * size) / 160, (size_t)(p.lines * line),
                     compute_units, &p);
}
