/* Declares all that the CPU backend asks of oneDNN. onednn_version.h has the differences between its versions. */
#pragma once

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/matmul/gemm.h"

/* Returns true if the CPU multiplies bfloat16. Otherwise oneDNN's bfloat16 is slower than converting to float32. */
bool lm_dnn_has_bf16(void);

/* Multiply bfloat16 matrices, on this thread alone, and convolve directly in float32 or bfloat16. *done is false, and
 * nothing is written, where oneDNN has no implementation worth using. */
lm_status lm_dnn_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
lm_status lm_dnn_conv(const lm_conv_job *job, bool *done);
