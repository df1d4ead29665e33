/* Multiplies many tensors by a number, in few launches. Enqueues on the stream and returns a cudaError_t. */
#pragma once

#include "c_linkage.h"
#include "tensor_table.h"

/* Sets each of the table's `to` to its `from` times factor; *found, unless NULL, becomes 1 if a value is not finite. */
LM_C int lm_rescale_run(int from_dtype, int to_dtype, const lm_tensor_table *table, double factor, float *found,
                        void *stream);
