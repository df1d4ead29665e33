/* Checks that the op families share. Messages start with the op's name. */
#pragma once

#include "op/run.h"

/* All on one device (0-d CPU numbers excepted): LM_E_DEVICE names both devices and :to(). */
lm_status lm_check_same_device(lm_op_id op, int n, lm_tensor *const *t);
lm_status lm_check_ndim(lm_op_id op, const char *arg, const lm_tensor *t, int ndim);
/* Floating dtype wanted; the message names the dtype seen and :float(). */
lm_status lm_check_float(lm_op_id op, const char *arg, const lm_tensor *t);
/* int64 or int32 wanted. */
lm_status lm_check_index(lm_op_id op, const char *arg, const lm_tensor *t);
/* Refuses a number that the dtype cannot hold; arg is what the op calls it. */
LM_API lm_status lm_check_number(const char *name, const char *arg, lm_dtype dtype, double number);
/* The same of a number of Lua that elements of the dtype are to become. Other tensors are let through. */
LM_API lm_status lm_check_fits(const char *name, lm_dtype dtype, const lm_tensor *value);
/* In-place writes: refuses a tensor whose elements share memory. */
lm_status lm_check_writable(lm_op_id op, const lm_tensor *t);
/* Entries of a dim of n that negative pads leave; and whether pad's arguments fit: pad holds before and after the last
 * dim, the one before it, … */
int64_t lm_pad_left(int64_t n, int64_t before, int64_t after);
lm_status lm_check_pad(const lm_pad_args *a);
/* The same numbers as the other struct; pads has at most LM_MAX_DIMS of them. */
lm_pads lm_pads_of(const lm_ints *v);
lm_ints lm_ints_of(const lm_pads *pads);
/* dims normalized, sorted, unique; all of them if n < 0 (or none are given for a 0-d x). */
lm_status lm_dims(lm_op_id op, const lm_ints *dims, int ndim, lm_ints *out);
/* A new tensor of that size, or like another, in whose layout it is; what is left out is the other's, or the default.
 */
lm_status lm_new_tensor(lm_op_id op, const lm_ints *size, const lm_tensor *like, lm_dtype dtype, lm_device device,
                        lm_tensor **out);
/* Every element becomes the number. */
lm_status lm_fill_number(lm_tensor *x, double number);
/* Takes dims of size 1 out of a tensor that nobody else has seen yet. */
void lm_drop_dims(lm_tensor *t, const lm_ints *dims);
/* x with one dim at least, and in dtype if that is one; a new reference. */
lm_status lm_at_least_1d(lm_tensor *x, lm_dtype dtype, lm_tensor **out);
