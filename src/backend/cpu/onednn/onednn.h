/* All that the CPU backend asks of oneDNN. What its versions do differently stands in onednn_version.h. */
#pragma once

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/matmul/gemm.h"

/* float32, on this thread alone. */
lm_status lm_dnn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* The CPU multiplies bfloat16. Without that oneDNN's bfloat16 is slower than converting to float32. */
bool lm_dnn_has_bf16(void);

/* bfloat16 matrices, on this thread alone, and direct convolution in float32 or bfloat16. *done is false, and nothing
 * is written, where oneDNN has no implementation worth having. */
lm_status lm_dnn_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
lm_status lm_dnn_conv(const lm_conv_job *job, bool *done);
