/* Multiplies matrices by cuBLASLt. */
#pragma once

#include "backend/cuda/cuda.h"

/* A batch of row-major products y[i] = alpha a[i] b[i] + beta y[i] (+ bias to each row). a [m, k] has lda elements in a
 * row, or is stored transposed, [k, m], with `ta`; so has b [k, n]; y [m, n]. Matrices of a batch are `step` elements
 * apart (0: one for all). None of the sizes is 0; beta 0 never reads y. */
typedef struct lm_cuda_gemm_shape {
  int64_t batch, m, n, k, lda, ldb, ldy, step_a, step_b, step_y;
  int32_t dtype, dtype_y, ta, tb; /* dtype: of a and b, floating; dtype_y: that, or float32; ta, tb: 0 or 1 */
} lm_cuda_gemm_shape;
typedef struct lm_cuda_gemm_job {
  lm_cuda_gemm_shape shape;
  lm_device device;
  const void *a, *b, *bias; /* bias: [n], aligned to LM_CUDA_ALIGN, or NULL */
  void *sums;               /* gets the sums of a's rows, [m], in dtype_y; or NULL. Not with a bias */
  bool sums_b;              /* true for the sums of b's columns, [n], instead */
  void *before;             /* y gets gelu_tanh of the sum, and this the sum, [m, n]; or NULL */
  bool is_gradient;         /* true if `before` is read, and y gets gelu_tanh's gradient there by the product */
  void *y;
  double alpha, beta;
} lm_cuda_gemm_job;

/* Makes the card's handle before any capture there: making it waits for the whole card. */
lm_status lm_cuda_blas_prepare(int ordinal);
/* Enqueues a product; *done is false, and nothing is enqueued, if the library has no kernel for it. */
lm_status lm_cuda_gemm(const lm_cuda_gemm_job *job, void *stream, bool *done);

/* Converts a cublasStatus_t: "mm: cublasLtMatmul: error 14 (CUBLAS_STATUS_INTERNAL_ERROR): why". */
lm_status lm_cuda_check_blas(int code, const char *call);
#define BLAS(call) lm_cuda_check_blas((int)(call), #call)
