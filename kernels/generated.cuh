/* Defines what kernels written at run time use (backend/cuda/group_text.c). */
#pragma once

#include "rtc.h"

#include "pointwise_elements.cuh"
#include "vectors.cuh"

/* Inputs of a row's function. */
template <class num, int N>
struct lm_inputs {
  num of[N];
};
