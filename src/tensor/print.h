/* Text of a tensor, in PyTorch's manner (widths, scientific mode, summarised beyond 1000 elements). */
#pragma once

#include "tensor/tensor.h"

/* How tensors are printed on this thread. scientific: 1 or 0, or -1, as the values ask for. */
typedef struct lm_print_options {
  int64_t precision, threshold, edge, line, scientific;
} lm_print_options;
LM_API lm_print_options *lm_printing(void);

/* *out is NUL-terminated, yours to lm_free. `suffix` is put before the closing bracket
 * (", requires_grad=true"), may be NULL. */
LM_API lm_status lm_tensor_print(const lm_tensor *t, const char *suffix, char **out);
