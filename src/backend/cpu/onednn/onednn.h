/* Declares all that the CPU backend asks of oneDNN. onednn_version.h has the differences between its versions.
 *
 * This folder is a plug-in, the only code linked to oneDNN: that and the C++ library beneath it take as long to load as
 * all else, and many programs never need them. */
#pragma once

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/matmul/gemm.h"

/* Functions of the plug-in, which onednn_load.c calls, and what it uses of the core. */
typedef struct lm_onednn_table {
  bool has_bf16; /* true where bfloat16 wins, on a CPU that has avx512bf16 */
  lm_status (*gemm_bf16)(const lm_cpu_gemm_job *job, bool *done);
  lm_status (*conv)(const lm_conv_job *job, bool *done);
  const struct lm_pointwise_loops *f32; /* the core's loops, set before the plug-in's function is called */
} lm_onednn_table;

/* Returns true if the CPU multiplies bfloat16. Otherwise oneDNN's bfloat16 is slower than converting to float32. */
bool lm_dnn_has_bf16(void);

/* Multiply bfloat16 matrices, on this thread alone, and convolve directly in float32 or bfloat16. *done is false, and
 * nothing is written, where oneDNN has no implementation worth using. */
lm_status lm_dnn_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
lm_status lm_dnn_conv(const lm_conv_job *job, bool *done);
