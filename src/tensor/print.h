/* Formats a tensor as text in PyTorch's style (widths, scientific mode, summarized beyond 1000 elements). */
#pragma once

#include "tensor/tensor.h"

/* Print options of this thread, as torch.set_printoptions. scientific: 1, 0, or -1 to decide by the values. */
typedef struct lm_print_options {
  int64_t precision, threshold, edge, line, scientific;
} lm_print_options;
LM_API lm_print_options *lm_printing(void);

/* Formats t into *out, NUL-terminated, which the caller frees by lm_free. `suffix`, which may be NULL, precedes the
 * closing bracket (", requires_grad=true"). */
LM_API lm_status lm_tensor_print(const lm_tensor *t, const char *suffix, char **out);
