/* Ops made of other ops: the COMP rows of op/op.def, and what DECOMPOSE rows of op/rules.def record. Their
 * gradients come with those ops'. */
#ifndef LM_AUTOGRAD_COMPOSITE_H
#define LM_AUTOGRAD_COMPOSITE_H

#include "autograd/autograd.h"

#define LM_IF_COMP(...) __VA_ARGS__
#define LM_IF_POINT(...)
#define LM_IF_VIEW(...)
#define LM_IF_PRIM(...)
#define LM_IF_WRITE(...)
#define LM_IF_NEW(...)

#define OP(name, kind, ...) LM_IF_##kind(lm_status lm_composite_##name(const lm_##name##_args *a, lm_tensor **out);)
#include "op/op.def"
#undef OP
#define POINT(op, in, formula)
#define RULE(op, in, formula)
#define JOINT(op, formula, ...)
#define EACH(op, in, formula)
#define NONE(op)
#define DECOMPOSE(op) lm_status lm_composite_##op(const lm_##op##_args *a, lm_tensor **out);
#include "op/rules.def"
#undef DECOMPOSE

typedef lm_status (*lm_composite_fn)(const void *args, lm_tensor **out);
/* NULL for other ops. */
lm_composite_fn lm_composite_of(lm_op_id op);

#endif
