/* Checks and small helpers the op families share. Messages start with the op's name. */
#ifndef LM_OP_CHECK_H
#define LM_OP_CHECK_H

#include "op/backend.h"
#include "op/op.h"

/* All on one device (0-d CPU numbers excepted): LM_E_DEVICE names both devices and :to(). */
lm_status lm_check_same_device(lm_op_id op, int n, lm_tensor *const *t);
lm_status lm_check_ndim(lm_op_id op, const char *arg, const lm_tensor *t, int ndim);
/* Floating dtype wanted; the message names the dtype seen and :float(). */
lm_status lm_check_float(lm_op_id op, const char *arg, const lm_tensor *t);
/* int64 or int32 wanted. */
lm_status lm_check_index(lm_op_id op, const char *arg, const lm_tensor *t);
/* In-place writes: refuses a tensor whose elements share memory. */
lm_status lm_check_writable(lm_op_id op, const lm_tensor *t);
/* Calls the device's slot, or says that the op has no kernel there. */
lm_status lm_dispatch(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out);
/* Elementwise, any kernel id (LM_OP_* or LM_GRAD_*): broadcasts, promotes, allocates; `into` writes
 * there instead. The dtype of LM_GRAD_* results is that of in[0]. */
lm_status lm_point_run(int kernel, int nin, lm_tensor *const *in, const double *numbers, lm_tensor *into,
                       lm_tensor **out);
/* dims normalized, sorted, unique; all of them if n < 0 (or none are given for a 0-d x). */
lm_status lm_dims(lm_op_id op, const lm_ints *dims, int ndim, lm_ints *out);
/* A copy of src's values in dst (any dtypes, devices, strides; sizes equal). */
LM_API lm_status lm_copy(const lm_tensor *src, lm_tensor *dst);
/* The same; with `later`, between a device and pinned host memory, it may go on after the return. */
LM_API lm_status lm_copy_later(const lm_tensor *src, lm_tensor *dst, bool later);

#endif
