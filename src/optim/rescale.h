/* Many tensors times one number, from one dtype to another, and whether a value of them was infinite or NaN: how loss
 * scaling is undone, and how float32 master weights and low ones follow each other. */
#pragma once

#include "op/backend.h"

/* to[i] = from[i] * factor, rounded once. Sizes and devices of a pair agree, dtypes are floating, to[i] may be from[i].
 * *found: 0-d float32 on the first one's device, 1 if a value of any was not finite, else 0; nothing has waited for it.
 * Counts one in-place write a tensor. `name` is put before messages. */
LM_API lm_status lm_rescale(const char *name, int n, lm_tensor *const *from, lm_tensor *const *to, double factor,
                            lm_tensor **found);
