/* Strided elementwise work: dims brought into the result's order and merged, transposed operands, elementwise launches
 * (kernels/strided.h, kernels/pointwise.h). */
#pragma once

#include "backend/cuda/cuda.h"
#include "pointwise.h"
#include "strided.h"

/* The layout of a result alone: its dims, still unmerged, innermost last as in the tensor. */
lm_strided_layout lm_cuda_strided(const lm_tensor *result);
/* One operand more, with strides along the result's dims; returns which one it is. */
int lm_cuda_strided_add(lm_strided_layout *l, const lm_tensor *t, const int64_t *stride);
/* Makes dim 0 the innermost: in the order of the result's memory, or row-major. Merges what all operands allow. */
enum { LM_BY_MEMORY, LM_ROW_MAJOR };
void lm_cuda_strided_order(lm_strided_layout *l, int order);
int64_t lm_cuda_strided_numel(const lm_strided_layout *l);

/* If operand k runs across the result, so that it pays to turn it first: the dim along which it is contiguous. Else 0.
 */
int lm_cuda_strided_across(const lm_strided_layout *l, int k);
/* For two operands of one dtype for which lm_cuda_strided_across says `dim`. */
lm_status lm_cuda_transpose(const lm_strided_layout *l, int dim, void *stream);

/* An ordered launch, whatever its size and its operands' layouts. */
lm_status lm_cuda_pointwise_launch(const char *name, lm_pointwise_launcher *launcher, lm_pointwise_launch *launch,
                                   lm_device device, void *stream);
/* The value of a tensor's only element, which lies in host memory, in a compute type. */
lm_pointwise_value lm_cuda_value(const lm_tensor *t, lm_dtype compute);
