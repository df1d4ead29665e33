/* Inputs brought into the layout a kernel wants: the tensor itself where it already has it. */
#ifndef LM_OP_LAYOUT_H
#define LM_OP_LAYOUT_H

#include "op/check.h"

/* LM_CHANNELS_LAST for a 4-d tensor that is laid out so (and not contiguous as well), else LM_CONTIGUOUS. */
lm_format lm_format_of(const lm_tensor *t);
/* *out is a new reference: t, or a copy in that format. LM_PRESERVE takes contiguous and
 * channels-last tensors as they are and makes the rest contiguous. */
lm_status lm_laid_out(lm_tensor *t, lm_format format, lm_tensor **out);
/* The same for the strides of `like`, which is dense and has t's sizes. */
lm_status lm_laid_out_like(lm_tensor *t, const lm_tensor *like, lm_tensor **out);
/* Class labels or indices as contiguous int64; LM_E_DTYPE unless t is int64, int32 or uint8. */
lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out);

#endif
