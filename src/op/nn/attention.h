/* What attention's op, its choice and the backends have in common. */
#pragma once

#include "op/op.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

/* Reserves a random number for each weight of query [..., L, E] and key [..., S, E], of the default generator. */
LM_API lm_draw lm_attention_take(const lm_tensor *query, const lm_tensor *key);

/* Whether every row of t, of four dims, is packs of 16 bytes, and begins at one. */
LM_API bool lm_attention_is_packed(const lm_tensor *t);

/* Whether cuDNN's fused attention is for [N, H, L, E] or [H, L, E] on a GPU, in the forward or the backward pass, as
 * far as their sizes say. mask may be NULL. */
LM_API bool lm_attention_fuses(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                               const lm_tensor *mask, bool causal, double dropout_p, bool backward);
