/* Ids of elementwise kernels: those of POINT ops are their LM_OP_ ids; the fused gradients follow. */
#ifndef LM_OP_POINTWISE_H
#define LM_OP_POINTWISE_H

#include "op/op.h"

enum {
  LM_GRAD_FIRST_ = LM_OP_COUNT - 1,
#define POINT(op, in, formula) LM_GRAD_##op##_##in,
#include "op/point_rows.def"
  LM_POINT_KERNELS
};

/* Which tensors a fused gradient's formula reads: bit 0 g, bit i the op's i-th tensor argument (from 1), bit
 * LM_POINT_Y its result. The kernel's inputs are these, in the order of the bits. 0 for a forward kernel. */
enum { LM_POINT_Y = 7, LM_POINT_PLACES = 8 };
LM_API unsigned lm_point_uses(int kernel);
/* Whether its second input must not be 0 among integers. */
static inline bool lm_point_divides(int kernel) {
  return kernel == LM_OP_floor_divide || kernel == LM_OP_trunc_divide || kernel == LM_OP_remainder;
}
/* The op a kernel belongs to. */
LM_API int lm_point_op(int kernel);

#endif
