/* Checks arguments for several op families. Messages start with the op's name. */
#pragma once

#include "op/run.h"
#include "op_entries.h"

/* Checks that all are on one device (0-d CPU numbers excepted): LM_E_DEVICE names both devices and :to(). */
lm_status lm_check_same_device(lm_op_id op, int n, lm_tensor *const *t);
lm_status lm_check_ndim(lm_op_id op, const char *arg, const lm_tensor *t, int ndim);
/* Requires a floating dtype; the message names the dtype seen and :float(). */
lm_status lm_check_float(lm_op_id op, const char *arg, const lm_tensor *t);
/* Requires an integer dtype other than uint8, which could be a mask. */
lm_status lm_check_index(lm_op_id op, const char *arg, const lm_tensor *t);
/* Refuses a number that the dtype cannot represent; arg is its name in the message. */
lm_status lm_check_number(const char *name, const char *arg, lm_dtype dtype, double number);
/* Refuses the same for a Lua number to be converted to the dtype. Accepts any other tensor. */
LM_API lm_status lm_check_fits(const char *name, lm_dtype dtype, const lm_tensor *value);
/* Refuses in-place writes to a tensor whose elements share memory. */
lm_status lm_check_writable(lm_op_id op, const lm_tensor *t);
/* Returns the entries of a dim of n that negative pads leave; and checks pad's arguments: pad lists before and after
 * the last dim, then the one before it, … */
int64_t lm_pad_left(int64_t n, int64_t before, int64_t after);
lm_status lm_check_pad(const lm_pad_args *a);
/* Convert between the two structs; pads has at most LM_MAX_DIMS numbers. */
lm_pads lm_pads_of(const lm_ints *v);
lm_ints lm_ints_of(const lm_pads *pads);
/* Normalizes and sorts dims, which must be unique; all dims if n < 0 (or if none are given for a 0-d x). */
lm_status lm_dims(lm_op_id op, const lm_ints *dims, int ndim, lm_ints *out);
/* Creates a tensor of `size`, or with the sizes and layout of `like`; dtype and device left out are like's, or
 * defaults. */
lm_status lm_new_tensor(lm_op_id op, const lm_ints *size, const lm_tensor *like, lm_dtype dtype, lm_device device,
                        lm_tensor **out);
/* Sets every element to the number. */
lm_status lm_fill_number(lm_tensor *x, double number);
/* Removes dims of size 1 from a tensor that nobody else has a reference to. */
void lm_drop_dims(lm_tensor *t, const lm_ints *dims);
