/* Reads and writes one element of a floating tensor, or of an array of float or double, as a double, for work that is
 * done once a channel or a row, not once an element. */
#pragma once

#include "tensor/tensor.h"

/* Returns the element i elements after the first. */
static inline double lm_scalar_load(const lm_tensor *t, int64_t i) { return lm_real_at(t->dtype, t->data, i); }

static inline void lm_scalar_store(lm_tensor *t, int64_t i, double v) {
  switch (t->dtype) {
    case LM_F64: ((double *)t->data)[i] = v; break;
    case LM_F32: ((float *)t->data)[i] = (float)v; break;
    case LM_F16: ((uint16_t *)t->data)[i] = lm_float_to_half((float)v); break;
    default: ((uint16_t *)t->data)[i] = lm_float_to_bf16((float)v); break;
  }
}

static inline double lm_scalar_at(lm_dtype dtype, const void *values, int64_t i) {
  return dtype == LM_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}
static inline void lm_scalar_put(lm_dtype dtype, void *values, int64_t i, double value) {
  if (dtype == LM_F64)
    ((double *)values)[i] = value;
  else
    ((float *)values)[i] = (float)value;
}
