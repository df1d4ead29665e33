/* Convolution by matrix products, for the types and sizes oneDNN does not take. The pixels under the
 * kernel are gathered into (or scattered from) rows of a matrix, a block of rows that fits a cache
 * at a time, for every group of channels on its own:
 *
 *   patches of x  [n oh ow, kh kw c]   gathered
 *   forward   y   [n oh ow, k] = patches times w [kh kw c, k], plus bias
 *   weight    w   [k, kh kw c] = y' [k, n oh ow] times patches
 *   input     patches = y [n oh ow, k] times w [k, kh kw c], then added up into x */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul/gemm.h"
#include "device/alloc.h"

enum { BLOCK_BYTES = 256 << 10, ALIGN = 64 };

/* Sizes in elements, of one group unless said otherwise. */
typedef struct plan {
  const lm_conv_job *job;
  const lm_conv_shape *s;
  int64_t c, k, depth; /* channels in and out, length of a patch */
  int64_t weights;     /* elements of all groups */
  int64_t rows, block; /* rows of all, and of a block */
  int64_t size;        /* bytes of an element */
  int parts;
  int64_t weight_bytes, block_bytes; /* aligned */
  double work;
  char *packed; /* weights; gradients of them are sums of each part's */
} plan;

static plan plan_of(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  plan p = {.job = job, .s = s, .c = s->c / s->groups, .k = s->k / s->groups};
  p.size = (int64_t)lm_dtype_size(job->dtype);
  p.depth = s->kh * s->kw * p.c;
  p.weights = s->k * p.depth;
  p.rows = s->n * s->oh * s->ow;
  p.block = p.depth > 0 ? BLOCK_BYTES / (p.depth * p.size) : 16;
  if (p.block < 16) p.block = 16;
  p.work = (double)p.rows * (double)p.weights / 10;
  int64_t threads = lm_threads_for(p.work);
  int64_t pieces = job->pass == LM_CONV_INPUT ? s->n : p.rows; /* an image's pixels overlap in x: one thread */
  p.parts = (int)(pieces < 1 ? 1 : pieces < threads ? pieces : threads);
  p.weight_bytes = lm_round_up(p.weights * p.size, ALIGN);
  p.block_bytes = lm_round_up(p.block * p.depth * p.size, ALIGN);
  return p;
}

static void add_up(const plan *p, const void *from, void *to, int64_t n) {
  if (p->job->dtype == LM_F64)
    for (int64_t i = 0; i < n; i++) ((double *)to)[i] += ((const double *)from)[i];
  else
    for (int64_t i = 0; i < n; i++) ((float *)to)[i] += ((const float *)from)[i];
}

/* Weights from [k, c, kh kw] as they come to [k, kh kw, c] as the products take them, or back. */
static void permute_weights(const plan *p, const void *from, void *to, bool back) {
  const int64_t taps = p->s->kh * p->s->kw;
  for (int64_t k = 0; k < p->s->k; k++)
    for (int64_t t = 0; t < taps; t++)
      for (int64_t c = 0; c < p->c; c++) {
        int64_t plain = (k * p->c + c) * taps + t, packed = (k * taps + t) * p->c + c;
        int64_t i = back ? packed : plain, j = back ? plain : packed;
        if (p->job->dtype == LM_F64)
          ((double *)to)[j] = ((const double *)from)[i];
        else
          ((float *)to)[j] = ((const float *)from)[i];
      }
}

typedef enum direction { GATHER, SCATTER } direction;

/* Between patches of rows first .. last - 1 and the pixels of x, one group's channels. */
static void move_patches(const plan *p, direction way, int64_t first, int64_t last, int64_t group, char *patch) {
  const lm_conv_shape *s = p->s;
  const int64_t run = p->c * p->size;
  if (run == 0) return; /* no channels: there is no patch either */
  for (int64_t row = first; row < last; row++) {
    int64_t n = row / (s->oh * s->ow), i = row / s->ow % s->oh, j = row % s->ow;
    for (int64_t u = 0; u < s->kh; u++) {
      int64_t y = i * s->stride[0] - s->padding[0] + u * s->dilation[0];
      for (int64_t v = 0; v < s->kw; v++, patch += run) {
        int64_t x = j * s->stride[1] - s->padding[1] + v * s->dilation[1];
        bool inside = y >= 0 && y < s->h && x >= 0 && x < s->w;
        char *pixel = inside ? (char *)p->job->x + (((n * s->h + y) * s->w + x) * s->c + group * p->c) * p->size : NULL;
        if (way == SCATTER) {
          if (inside) add_up(p, patch, pixel, p->c);
        } else if (inside) {
          memcpy(patch, pixel, (size_t)run);
        } else {
          memset(patch, 0, (size_t)run);
        }
      }
    }
  }
}

/* The product of one pass for rows first .. last - 1. y is at its group's channels. */
static lm_status multiply(const plan *p, int64_t first, int64_t last, int64_t group, char *patch, char *weights) {
  const lm_conv_job *job = p->job;
  const int64_t rows = last - first, depth = p->depth > 0 ? p->depth : 1, ldy = p->s->k;
  char *y = (char *)job->y + (first * p->s->k + group * p->k) * p->size;
  char *w = weights + group * p->k * p->depth * p->size;
  lm_cpu_gemm_job g = {.dtype = job->dtype, .device = job->device, .batch = 1, .alpha = 1};
  switch (job->pass) {
    case LM_CONV_FORWARD:
      g.m = rows, g.n = p->k, g.k = p->depth;
      g.a = patch, g.lda = depth;
      g.b = w, g.ldb = depth, g.tb = true;
      g.c = y, g.ldc = ldy;
      g.beta = job->bias ? 1 : 0;
      break;
    case LM_CONV_INPUT:
      g.m = rows, g.n = p->depth, g.k = p->k;
      g.a = y, g.lda = ldy;
      g.b = w, g.ldb = depth;
      g.c = patch, g.ldc = depth;
      break;
    case LM_CONV_WEIGHT:
      g.m = p->k, g.n = p->depth, g.k = rows;
      g.a = y, g.lda = ldy, g.ta = true;
      g.b = patch, g.ldb = depth;
      g.c = w, g.ldc = depth;
      g.beta = 1;
      break;
  }
  return lm_cpu_gemm(&g);
}

/* The rows of a part, block by block. */
static lm_status run_rows(const plan *p, int64_t begin, int64_t end, char *patch, char *weights) {
  const lm_conv_job *job = p->job;
  const int64_t row_bytes = p->s->k * p->size;
  for (int64_t first = begin; first < end; first += p->block) {
    int64_t last = first + p->block < end ? first + p->block : end;
    for (int64_t row = first; job->bias && row < last; row++)
      memcpy((char *)job->y + row * row_bytes, job->bias, (size_t)row_bytes);
    for (int64_t group = 0; group < p->s->groups; group++) {
      if (job->pass != LM_CONV_INPUT) move_patches(p, GATHER, first, last, group, patch);
      NEED(multiply(p, first, last, group, patch, weights));
      if (job->pass == LM_CONV_INPUT) move_patches(p, SCATTER, first, last, group, patch);
    }
  }
  return LM_OK;
}

/* First row of a part: any, or the first of an image. */
static int64_t part_begin(const plan *p, int part) {
  if (p->job->pass != LM_CONV_INPUT) return p->rows * part / p->parts;
  return p->s->n * part / p->parts * p->s->oh * p->s->ow;
}

static void run_parts(void *ctx, int64_t first, int64_t last) {
  plan *p = ctx;
  for (int64_t part = first; part < last; part++) {
    char *own = p->packed + (p->job->pass == LM_CONV_WEIGHT ? part * p->weight_bytes : 0);
    lm_parallel_note(run_rows(p, part_begin(p, (int)part), part_begin(p, (int)part + 1), lm_scratch(), own));
  }
}

lm_status lm_im2col_conv(const lm_conv_job *job) {
  lm_status status = LM_OK;
  plan p = plan_of(job);
  const bool sums = job->pass == LM_CONV_WEIGHT; /* each part adds up weights of its own */
  const int copies = sums ? p.parts : 1;
  const size_t bytes = (size_t)(copies * p.weight_bytes) + ALIGN;
  void *scratch = NULL;
  TRY(lm_device_alloc(job->device, bytes, &scratch));
  p.packed = scratch;
  if (sums)
    memset(p.packed, 0, (size_t)(copies * p.weight_bytes));
  else
    permute_weights(&p, job->w, p.packed, false);
  if (job->pass == LM_CONV_INPUT) memset(job->x, 0, (size_t)(p.s->n * p.s->h * p.s->w * p.s->c * p.size));
  TRY(lm_parallel(p.parts, p.parts > 1 ? p.work : 0, (size_t)p.block_bytes, run_parts, &p));
  for (int part = 1; part < copies; part++) add_up(&p, p.packed + part * p.weight_bytes, p.packed, p.weights);
  if (sums) permute_weights(&p, p.packed, job->w, true);
done:
  if (scratch) lm_device_free(job->device, scratch, bytes);
  return status;
}
