/* Moving elements without looking at them. Functions return a cudaError_t. For C and CUDA. */
#pragma once

#include <stddef.h>

#include "strided.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Within a device. */
int lm_copy_bytes(void *dst, const void *src, size_t bytes, void *stream);
int lm_set_bytes(void *dst, int byte, size_t bytes, void *stream);

/* Operand 1 into operand 0, both of one dtype, fewer than 2^31 elements: operand 0 has stride 1 along dim 0, operand 1
 * along `dim`. Both are read and written in whole rows, by way of tiles in shared memory. */
int lm_copy_transposed(const lm_strided_layout *at, int dim, void *stream);

#ifdef __cplusplus
}
#endif
