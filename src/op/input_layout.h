/* Inputs brought into the layout a kernel wants: the tensor itself where it already has it. */
#pragma once

#include "op/check.h"

/* LM_CHANNELS_LAST for a 4-d tensor that is laid out so (and not contiguous as well), else LM_CONTIGUOUS. */
lm_format lm_format_of(const lm_tensor *t);
/* For the gradient of an input of that size whose own layout is not known: channels-last if it is
 * [N, C, H, W], as convolution networks run, even where the gradient comes back contiguous through
 * a flatten. */
lm_format lm_gradient_format(const lm_ints *size);
/* *out is a new reference: t, or a copy in that format. LM_PRESERVE takes contiguous and
 * channels-last tensors as they are and makes the rest contiguous. */
lm_status lm_to_layout(lm_tensor *t, lm_format format, lm_tensor **out);
/* Contiguous, and of memory that no other process or thread writes to meanwhile: on the CPU a copy unless the storage
 * is this Lua state's alone. For values that are checked before they are used as positions, sizes or counts. */
lm_status lm_to_private_copy(lm_tensor *t, lm_tensor **out);
/* The same for the strides of `like`, which is dense and has t's sizes. */
lm_status lm_to_layout_like(lm_tensor *t, const lm_tensor *like, lm_tensor **out);
