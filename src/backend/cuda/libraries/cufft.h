/* Fourier transforms of many lines through cuFFT. */
#pragma once

#include "backend/cuda/cuda.h"

enum { LM_FFT_C2C, LM_FFT_R2C, LM_FFT_C2R };

/* Lines of n numbers (on the side of the pairs of a real transform: n / 2 + 1 pairs), unscaled. Entries of a line lie
 * `step` apart, on both sides, and lines `apart`, in pairs or, where the side is real, numbers. x and y begin at
 * multiples of LM_CUDA_ALIGN bytes. A transform to real numbers destroys x, and wants the imaginary parts of what has
 * none to be 0.
 */
typedef struct lm_cuda_fft_job {
  lm_dtype dtype; /* float32, float64 */
  lm_device device;
  int kind;
  bool inverse; /* of C2C */
  int64_t n, lines, step, x_apart, y_apart;
  void *x, *y;
} lm_cuda_fft_job;

/* LM_E_MISSING, and nothing was enqueued, where there is no library, it has no plan for this, or a plan cannot be made
 * because another thread captures a graph. */
lm_status lm_cuda_fft(const lm_cuda_fft_job *job, void *stream);
