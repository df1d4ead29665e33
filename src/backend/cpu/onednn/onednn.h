/* All that the CPU backend asks of oneDNN. What its versions do differently stands in onednn_version.h. */
#pragma once

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/matmul/gemm.h"

/* The CPU multiplies bfloat16. Without that oneDNN's bfloat16 is slower than converting to float32. */
bool lm_dnn_has_bf16(void);

/* bfloat16 matrices, on this thread alone, and direct convolution in float32 or bfloat16. *done is false, and nothing
 * is written, where oneDNN has no implementation worth having. */
lm_status lm_dnn_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
lm_status lm_dnn_conv(const lm_conv_job *job, bool *done);
