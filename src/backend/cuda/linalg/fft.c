/* Computes Fourier transforms of lines, by way of copies if they are neither contiguous nor side by side. */
#include "backend/cuda/libraries/cufft.h"
#include "linalg.h"

static lm_status scale(lm_tensor *y, double factor, void *stream) {
  if (factor == 1) return LM_OK;
  return LAUNCH("scale", lm_k_scale(y->dtype, y->data, y->numel, factor, stream));
}

/* Transposes complex numbers [batches, n, inner] to [batches, inner, n]; moves two float32 as one float64. */
static lm_status transpose_lines(lm_tensor *x, lm_tensor *y, int64_t batches, int64_t n, int64_t inner) {
  LM_OWNED *from = NULL, *to = NULL;
  bool whole = x->dtype == LM_F32;
  int64_t pair = whole ? 1 : 2;
  int64_t size[4] = {batches, inner, n, 2}, stride[4] = {n * inner * pair, pair, inner * pair, 1};
  int64_t dense[4] = {n * inner * pair, n * pair, pair, 1};
  int ndim = whole ? 3 : 4;
  NEED(lm_tensor_view_as(x, LM_F64, ndim, size, stride, 0, &from));
  NEED(lm_tensor_view_as(y, LM_F64, ndim, size, dense, 0, &to));
  return lm_cuda_copy(from, to);
}

lm_status lm_cuda_fft_c2c(const lm_fft_c2c_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x, *transposed;
  int64_t n = a->x->size[a->dim], inner = 1, batches;
  for (int d = (int)a->dim + 1; d < a->x->ndim - 1; d++) inner *= a->x->size[d];
  batches = a->x->numel / (2 * n * inner);
  bool copies = inner > 1 && batches > 1, beside = inner > 1 && !copies;
  NEED(lm_cuda_lay_out(f, a->x, LM_CONTIGUOUS, true, &x));
  lm_cuda_fft_job job = {.dtype = x->dtype,
                         .device = x->device,
                         .kind = LM_FFT_C2C,
                         .inverse = a->inverse,
                         .n = n,
                         .lines = batches * inner,
                         .step = beside ? inner : 1,
                         .x_apart = beside ? 1 : n,
                         .y_apart = beside ? 1 : n,
                         .x = x->data,
                         .y = out[0]->data};
  if (copies) {
    NEED(lm_cuda_take_tensor(f, job.dtype, x->ndim, x->size, &transposed));
    NEED(transpose_lines(x, transposed, batches, n, inner));
    job.x = job.y = transposed->data;
  }
  NEED(lm_cuda_fft(&job, f->stream));
  if (copies) NEED(transpose_lines(transposed, out[0], batches, inner, n));
  return scale(out[0], a->scale, f->stream);
}

/* Transforms dense lines x to y; one of them has lines of n real numbers. */
static lm_status dense_lines(int kind, lm_tensor *x, int64_t n, int64_t lines, lm_tensor *y, void *stream) {
  int64_t half = n / 2 + 1;
  lm_cuda_fft_job job = {.dtype = x->dtype,
                         .device = x->device,
                         .kind = kind,
                         .n = n,
                         .lines = lines,
                         .step = 1,
                         .x_apart = kind == LM_FFT_R2C ? n : half,
                         .y_apart = kind == LM_FFT_R2C ? half : n,
                         .x = x->data,
                         .y = y->data};
  return lm_cuda_fft(&job, stream);
}

/* Transforms dense lines x of n real numbers into y. */
static lm_status real_lines(lm_tensor *x, int64_t n, double factor, double inner, lm_tensor *y, void *stream) {
  int64_t lines = x->numel / n;
  NEED(dense_lines(LM_FFT_R2C, x, n, lines, y, stream));
  if (factor == 1 && inner == 1) return LM_OK;
  return LAUNCH("half_lines", lm_k_half_lines(y->dtype, y->data, n, lines, factor, inner, false, stream));
}

lm_status lm_cuda_fft_r2c(const lm_fft_r2c_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x;
  NEED(lm_cuda_lay_out(f, a->x, LM_CONTIGUOUS, true, &x));
  return real_lines(x, a->x->size[a->x->ndim - 1], a->scale, a->inner, out[0], f->stream);
}

lm_status lm_cuda_stft_lines(const lm_stft_lines_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *frames;
  lm_frames s = {a->x->size[0], a->x->size[1], out[0]->size[1], a->window->numel, a->hop};
  NEED(lm_cuda_take_tensor(f, a->x->dtype, 1, &(int64_t){s.batch * s.count * s.n}, &frames));
  NEED(LAUNCH("frames", lm_k_frames(a->x->dtype, a->x->data, a->window->data, s, frames->data, f->stream)));
  return real_lines(frames, s.n, a->scale, a->inner, out[0], f->stream);
}

lm_status lm_cuda_overlap_add(const lm_overlap_add_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_frames s = {out[0]->size[0], out[0]->size[1], a->frames->size[1], a->window->numel, a->hop};
  return LAUNCH("overlap_add",
                lm_k_overlap_add(out[0]->dtype, a->frames->data, a->window->data, s, out[0]->data, f->stream));
}

/* Transforms a copy, which cuFFT destroys, to real numbers. Ignores imaginary parts of entries that are real in the
 * transform of a real line. */
lm_status lm_cuda_fft_c2r(const lm_fft_c2r_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x;
  int64_t n = a->n, lines = out[0]->numel / n;
  NEED(lm_cuda_take_tensor(f, a->x->dtype, a->x->ndim, a->x->size, &x));
  NEED(lm_cuda_copy(a->x, x));
  NEED(LAUNCH("half_lines", lm_k_half_lines(x->dtype, x->data, n, lines, 1, a->inner, true, f->stream)));
  NEED(dense_lines(LM_FFT_C2R, x, n, lines, out[0], f->stream));
  return scale(out[0], a->scale, f->stream);
}
