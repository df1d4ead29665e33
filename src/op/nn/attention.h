/* What the op attention_draw and the backends have in common. */
#ifndef LM_OP_NN_ATTENTION_H
#define LM_OP_NN_ATTENTION_H

#include "op/op.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

/* Reserves a random number for each weight of query [..., L, E] and key [..., S, E], of the default generator. */
LM_API lm_draw lm_attention_take(const lm_tensor *query, const lm_tensor *key);

#endif
