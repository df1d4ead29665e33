/* Multiplies many tensors by one number, with a change of dtype, and reports whether any value was infinite or NaN.
 * Loss scaling and copies between float32 master weights and lower-precision weights use it. */
#pragma once

#include "op/backend.h"

/* Sets to[i] = from[i] * factor, rounded once. A pair shares sizes and device, dtypes are floating, to[i] may be
 * from[i]. *found: 0-d float32 on the first device, 1 if any value was not finite, else 0; the host has not waited for
 * it. Counts one in-place write per tensor. Messages begin with `name`. */
LM_API lm_status lm_rescale(const char *name, int n, lm_tensor *const *from, lm_tensor *const *to, double factor,
                            lm_tensor **found);
