/* Multiplies many tensors by a number, in few launches. Enqueues on the stream and returns a cudaError_t. */
#pragma once

#include "c_linkage.h"
#include "tensor_table.h"

/* Sets the table's `to` to its `from` times factor. *found becomes 1 if a value is infinite or NaN; it may be NULL. */
LM_C int lm_rescale_run(int from_dtype, int to_dtype, const lm_tensor_table *table, double factor, float *found,
                        void *stream);
