/* Runs Fourier transforms of many lines by cuFFT. */
#pragma once

#include "backend/cuda/cuda.h"

enum { LM_FFT_C2C, LM_FFT_R2C, LM_FFT_C2R };

/* Lines of n numbers (a real transform's complex side: n / 2 + 1), unscaled. Entries of a line are `step` apart, on
 * both sides, and lines `apart`, in complex or, on a real side, real numbers. x and y begin at multiples of
 * LM_CUDA_ALIGN bytes. A transform to real numbers destroys x, and expects the imaginary parts of its real entries to
 * be 0. */
typedef struct lm_cuda_fft_job {
  lm_dtype dtype; /* float32, float64 */
  lm_device device;
  int kind;
  bool inverse; /* C2C only */
  int64_t n, lines, step, x_apart, y_apart;
  void *x, *y;
} lm_cuda_fft_job;

/* Enqueues a transform. LM_E_MISSING, with nothing enqueued, if there is no library, it has no plan for this, or
 * another thread captures a graph, so that no plan can be made. */
lm_status lm_cuda_fft(const lm_cuda_fft_job *job, void *stream);
