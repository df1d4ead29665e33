/* Copies, sets, transposes and casts elements. Functions return a cudaError_t. For C and CUDA. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "c_linkage.h"
#include "strided.h"

/* Copy or set bytes within a device. */
LM_C int lm_copy_bytes(void *dst, const void *src, size_t bytes, void *stream);
LM_C int lm_set_bytes(void *dst, int byte, size_t bytes, void *stream);

/* Copies operand 1 to operand 0, both of one dtype, fewer than 2^31 elements: operand 0 has stride 1 along dim 0,
 * operand 1 along `dim`. Both are read and written in whole rows, by way of tiles in shared memory. */
LM_C int lm_copy_transposed(const lm_strided_layout *at, int dim, void *stream);

/* Cast n elements at 16-byte boundaries between float32 and float16 or bfloat16. */
LM_C bool lm_copy_can_cast(int from, int to);
LM_C int lm_copy_cast(void *dst, int to, const void *src, int from, int64_t n, void *stream);
