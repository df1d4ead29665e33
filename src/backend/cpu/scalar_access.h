/* Reads and writes one element of a floating tensor or array as a double, for work that is done once a channel or a
 * row, not once an element; lm_real_at reads arrays. */
#pragma once

#include "tensor/tensor.h"

/* Returns the element i elements after the first. */
static inline double lm_scalar_load(const lm_tensor *t, int64_t i) { return lm_real_at(t->dtype, t->data, i); }

static inline void lm_scalar_put(lm_dtype dtype, void *values, int64_t i, double v) {
  switch (dtype) {
    case LM_F64: ((double *)values)[i] = v; break;
    case LM_F32: ((float *)values)[i] = (float)v; break;
    case LM_F16: ((uint16_t *)values)[i] = lm_float_to_half((float)v); break;
    default: ((uint16_t *)values)[i] = lm_float_to_bf16((float)v); break;
  }
}

static inline void lm_scalar_store(lm_tensor *t, int64_t i, double v) { lm_scalar_put(t->dtype, t->data, i, v); }
