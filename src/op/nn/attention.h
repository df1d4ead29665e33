/* Declares what attention's op, its composite form and the backends share. */
#pragma once

#include "op/op.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

/* Reserves random numbers of the default generator, one for each weight of query [..., L, E] and key [..., S, E]. */
LM_API lm_draw lm_attention_take(const lm_tensor *query, const lm_tensor *key);

/* True if every row of t (4-d) starts at a multiple of 16 bytes and is a multiple of 16 bytes long. */
LM_API bool lm_attention_is_packed(const lm_tensor *t);

/* True if cuDNN's fused attention suits the sizes of [N, H, L, E] or [H, L, E] on a GPU, in the forward or backward
 * pass. mask may be NULL. */
LM_API bool lm_attention_fuses(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                               const lm_tensor *mask, bool causal, double dropout_p, bool backward);
