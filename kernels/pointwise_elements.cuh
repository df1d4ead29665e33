/* Defines the rows of elementwise kernels, those of op/entries/ops.lua and of fused gradients: structs with
 *   NIN                       number of its inputs
 *   TEST                      true if results are 1 or 0, stored as bool
 *   DIVIDES                   index from 1 of the input that may not be 0; 0: none
 *   of(in, numbers)           its value
 * for each compute type num. Kernels compiled beforehand and those written at run time (generated.h) share them. */
#pragma once

#include "pointwise_numbers.h"
#include "scalar_functions_cuda.cuh"
#include "types.cuh"

template <class num>
struct lm_numbers {
  num of[LM_POINTWISE_NUMBERS];
};

#define LM_REAL
#define LM_WHOLE
#define LM_ELEMENT     \
  template <class num> \
  LM_DEVICE
#include "pointwise_scalars.h"

#include "pointwise_rows.cuh"

template <class num>
struct lm_row_copy {
  enum { NIN = 1, TEST = 0, DIVIDES = 0 };
  static LM_DEVICE num of(const num *in_, const lm_numbers<num> &) { return in_[0]; }
};
