/* Converts inputs to the layout a kernel accepts, without a copy if they have it already. */
#pragma once

#include "op/check.h"

/* Returns LM_CHANNELS_LAST for a 4-d tensor in that layout that is not contiguous as well, else LM_CONTIGUOUS. */
lm_format lm_format_of(const lm_tensor *t);
/* Returns the format for the gradient of an input of that size but unknown layout: channels-last for [N, C, H, W], as
 * convolution networks run, even if the gradient comes back contiguous through a flatten. */
lm_format lm_gradient_format(const lm_ints *size);
/* Sets *out to t or to a copy in that format; a new reference. LM_PRESERVE accepts contiguous and channels-last tensors
 * and makes others contiguous. */
lm_status lm_to_layout(lm_tensor *t, lm_format format, lm_tensor **out);
/* Sets *out to t or to a contiguous copy in memory that no other process or thread can write to: on the CPU a copy
 * unless only this Lua state uses the storage. For values that are checked before use as positions, sizes or counts. */
lm_status lm_to_private_copy(lm_tensor *t, lm_tensor **out);
/* Does as lm_to_layout for the strides of `like`, which is dense and has t's sizes. */
lm_status lm_to_layout_like(lm_tensor *t, const lm_tensor *like, lm_tensor **out);
/* Sets *out to x's elements in order, contiguous and 1-d; a new reference. */
lm_status lm_to_line(lm_tensor *x, lm_tensor **out);
/* Sets *out to x or to a copy in that dtype; a new reference. */
lm_status lm_to_dtype(lm_tensor *x, lm_dtype dtype, lm_tensor **out);
/* Returns x, at least 1-d and in dtype unless LM_NO_DTYPE; a new reference. */
lm_status lm_at_least_1d(lm_tensor *x, lm_dtype dtype, lm_tensor **out);
