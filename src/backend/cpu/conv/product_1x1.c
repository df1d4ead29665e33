/* Computes 1 x 1 convolutions without stride as products of matrices, and those of a kernel as large as the images,
 * which are planar: a row of x is an image, and its pixels are channels. Channels-last images are matrices already, and
 * the planes of an image [c, h, w] are one that is transposed:
 *
 *   forward   y [rows, k] = x [rows, c] times w' [c, k]
 *   input     x [rows, c] = y [rows, k] times w [k, c]
 *   weight    w [k, c] = y' [k, rows] times x [rows, c] */
#include "backend/cpu/conv/conv.h"
#include "backend/cpu/matmul/gemm.h"

/* Most rows for which products of matrices are faster, since they keep larger blocks in the caches. */
enum { FEW_ROWS = 2048 };
/* Most terms of a sum that takes less time than finding the rows that direct.c gathers as runs. */
enum { SHORT_SUM = 32 };

bool lm_product_takes_window(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  return s->kh == s->h && s->kw == s->w && s->oh == 1 && s->ow == 1 && s->padding[0] == 0 && s->padding[1] == 0 &&
         s->groups == 1 && job->dtype != LM_BF16 && !job->bias && s->n * s->c * s->k > 0;
}

bool lm_product_takes(const lm_conv_job *job) {
  if (job->x_planar && lm_product_takes_window(job)) return true;
  const lm_conv_shape *s = &job->shape;
  const bool plain = s->kh == 1 && s->kw == 1 && s->stride[0] == 1 && s->stride[1] == 1 && s->padding[0] == 0 &&
                     s->padding[1] == 0 && s->groups == 1 && job->dtype != LM_BF16 && s->n * s->c * s->k > 0;
  if (!plain || (job->bias && job->x_planar)) return false;
  const int64_t depth = job->pass == LM_CONV_INPUT ? s->k : s->c;
  return job->x_planar || job->pass == LM_CONV_WEIGHT || depth <= SHORT_SUM || s->n * s->h * s->w <= FEW_ROWS;
}

lm_status lm_product_conv(const lm_conv_job *job) {
  lm_conv_shape one = job->shape;
  const lm_conv_shape *s = &one;
  if (one.oh == 1 && one.ow == 1) one.c *= one.kh * one.kw, one.h = one.w = 1;
  const int64_t pixels = s->h * s->w, rows = s->n * pixels;
  const bool planar = job->x_planar && pixels > 1;
  const int64_t images = planar ? s->n : 1;
  const int64_t size = (int64_t)lm_dtype_size(job->dtype), ldx = planar ? pixels : s->c;
  lm_cpu_gemm_job g;
  bool finished = false;
  switch (job->pass) {
    case LM_CONV_FORWARD:
      g = lm_cpu_gemm_job_of(job->dtype, rows / images, s->k, s->c, 1, lm_gemm_matrix_of(job->x, ldx, planar),
                             lm_gemm_matrix_of(job->w, s->c, true), 0, job->y, s->k);
      g.batch = images, g.a.step = s->c * pixels, g.step_c = s->k * pixels;
      g.b.tensor = job->weight;
      if (job->bias) g.bias = job->bias, g.beta = 1;
      if (job->finishes && images == 1) g.finish = lm_epilogue_finish, g.finish_ctx = &job->end, g.finished = &finished;
      NEED(lm_cpu_gemm(&g));
      return job->finishes && !finished ? lm_conv_finish_all(job) : LM_OK;
    case LM_CONV_INPUT:
      g = lm_cpu_gemm_job_of(job->dtype, rows, s->c, s->k, 1, lm_gemm_matrix_of(job->y, s->k, false),
                             lm_gemm_matrix_of(job->w, s->c, false), 0, job->x, s->c);
      g.b.tensor = job->weight;
      return lm_cpu_gemm(&g);
    case LM_CONV_WEIGHT: break;
  }
  for (int64_t i = 0; i < images; i++) {
    const char *y = (const char *)job->y + i * pixels * s->k * size,
               *x = (const char *)job->x + i * pixels * s->c * size;
    g = lm_cpu_gemm_job_of(job->dtype, s->k, s->c, rows / images, 1, lm_gemm_matrix_of(y, s->k, true),
                           lm_gemm_matrix_of(x, ldx, planar), i > 0, job->w, s->c);
    NEED(lm_cpu_gemm(&g));
  }
  return LM_OK;
}
