/* Prepares strided elementwise work: orders and merges dims, transposes operands, launches elementwise kernels
 * (kernels/strided.h, kernels/pointwise.h). */
#pragma once

#include "backend/cuda/cuda.h"
#include "pointwise.h"
#include "strided.h"

/* Returns the layout of a result alone: its dims, still unmerged, innermost last as in the tensor. */
lm_strided_layout lm_cuda_strided(const lm_tensor *result);
/* Adds an operand, with strides along the result's dims; returns its number. */
int lm_cuda_strided_add(lm_strided_layout *l, const lm_tensor *t, const int64_t *stride);
/* Orders dims so that dim 0 is the innermost: by the result's memory, or row-major. Merges dims where all operands
 * allow. */
enum { LM_BY_MEMORY, LM_ROW_MAJOR };
void lm_cuda_strided_order(lm_strided_layout *l, int order);
int64_t lm_cuda_strided_numel(const lm_strided_layout *l);

/* Returns the dim along which operand k is contiguous, if it is worth transposing it first, else 0. */
int lm_cuda_strided_across(const lm_strided_layout *l, int k);
/* Copies two operands of one dtype for which lm_cuda_strided_across returns `dim`. */
lm_status lm_cuda_transpose(const lm_strided_layout *l, int dim, void *stream);

/* Launches on an ordered layout, whatever its size and its operands' layouts. */
lm_status lm_cuda_pointwise_launch(const char *name, lm_pointwise_launcher *launcher, lm_pointwise_launch *launch,
                                   lm_device device, void *stream);
/* Returns the value of a tensor's only element, which is in host memory, in a compute type. */
lm_pointwise_value lm_cuda_value(const lm_tensor *t, lm_dtype compute);
