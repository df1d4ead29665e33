/* Words error messages: each form of message has its wording here, and nowhere else. A function writes the form shown
 * above it as the thread's message and returns the status named after it.
 *
 * `op` is the public name of the called function, `name` the argument as the public signature has it. All parameters
 * are text; shapes come from lm_shape_of, dtypes from lm_dtype_name, other values from lm_text. */
#pragma once

#include <locale.h>
#include <stdint.h>

#include "base/status.h"

/* Makes printf, strtod and their kin use a decimal point on this thread for the rest of a block, whatever the host's
 * locale has. */
locale_t lm_plain_numbers_begin(void);
void lm_plain_numbers_end(locale_t *before);
#define LM_PLAIN_NUMBERS(name) \
  __attribute__((cleanup(lm_plain_numbers_end), unused)) locale_t name = lm_plain_numbers_begin()

/* Formats as snprintf into one of eight 256-byte buffers of this thread, used in turn. */
LM_API const char *lm_text(const char *format, ...) LM_PRINTF(1, 2);
/* Appends "; " and a remedy to the last message; returns status. */
LM_API lm_status lm_remedy(lm_status status, const char *format, ...) LM_PRINTF(2, 3);

/* OP: NAME must be BOUND, got VALUE. LM_E_ARG. */
LM_API lm_status lm_fail_value(const char *op, const char *name, const char *bound, const char *got);
LM_API lm_status lm_fail_int(const char *op, const char *name, const char *bound, int64_t got);
LM_API lm_status lm_fail_number(const char *op, const char *name, const char *bound, double got);
/* OP: NAME is missing; expected BOUND. For an argument that was not passed. LM_E_ARG. */
LM_API lm_status lm_fail_absent(const char *op, const char *name, const char *bound);
/* OP: NAME (V) must be divisible by NAME2 (V2). LM_E_ARG. */
lm_status lm_fail_divisible(const char *op, const char *name, int64_t value, const char *divisor_name, int64_t divisor);
/* OP: takes at most N THINGS, got M; for N = 0: takes no THINGS. `thing` is singular, such as "argument". LM_E_ARG. */
LM_API lm_status lm_fail_too_many(const char *op, int limit, const char *thing, int64_t got);
/* OP: NAME is given twice, by position and by name. LM_E_ARG. */
LM_API lm_status lm_fail_twice(const char *op, const char *name);
/* OP: A and B are mutually exclusive. LM_E_ARG. */
lm_status lm_fail_exclusive(const char *op, const char *a, const char *b);
/* OP: dim D is repeated; `dim` counts from 1. LM_E_ARG. */
lm_status lm_fail_repeated_dim(const char *op, int dim);
/* OP: cannot write in place to NAME of shape [..], whose elements share memory; :clone() it first. LM_E_ARG. */
lm_status lm_fail_overlap(const char *op, const char *name, const char *shape);
/* OP: unknown option 'x'; did you mean 'y'? Lists all names if none is near; for PyTorch's `out`, names copy_ instead.
 * LM_E_ARG. */
LM_API lm_status lm_fail_option(const char *op, const char *option, int n, const char *const *names);

/* OP: expected NAME to have shape EXPECTED, got GOT. LM_E_SHAPE. */
LM_API lm_status lm_fail_shape(const char *op, const char *name, const char *expected, const char *got);
/* OP: shapes of A and B must match, got [..] and [..]. LM_E_SHAPE. */
LM_API lm_status lm_fail_shapes(const char *op, const char *a, const char *shape_a, const char *b, const char *shape_b);
/* OP: NAME of shape [..] does not broadcast to [..]. LM_E_SHAPE. */
lm_status lm_fail_broadcast(const char *op, const char *name, const char *shape, const char *target);
/* OP: dim D of [..] must not be empty; `dim` counts from 1. LM_E_SHAPE. */
lm_status lm_fail_empty_dim(const char *op, int dim, const char *shape);
/* OP: index I is out of range for dimension D of size N (indices start at 1); `dim` counts from 1. LM_E_INDEX. */
LM_API lm_status lm_fail_index(const char *op, int64_t index, int dim, int64_t size);

/* OP: NAME must be BOUND, got DTYPE. LM_E_DTYPE. */
LM_API lm_status lm_fail_dtype(const char *op, const char *name, const char *bound, const char *got);
/* OP: dtype mismatch: A is float32, B is int64; convert one with :to(). LM_E_DTYPE. */
lm_status lm_fail_dtypes(const char *op, const char *a, const char *dtype_a, const char *b, const char *dtype_b);
/* OP: device mismatch: A is on cpu, B is on cuda:0; move one with :to(). LM_E_DEVICE. */
lm_status lm_fail_devices(const char *op, const char *a, const char *device_a, const char *b, const char *device_b);

/* OP: integer division by zero. LM_E_ARG. */
LM_API lm_status lm_fail_division(const char *op);
/* OP: not implemented for WHERE (a device, a dtype). LM_E_MISSING. */
LM_API lm_status lm_fail_missing(const char *op, const char *where);
/* OP: saved tensors were freed by an earlier backward(); pass {retain_graph = true} to the first. LM_E_STATE. */
lm_status lm_fail_freed(const char *op);

/* ---- distributed and processes */

/* cannot ACTION: REASON, the system's text for `error`: "cannot create thread: Resource temporarily unavailable". */
LM_API lm_status lm_fail_cannot(lm_status status, const char *action, int error);
/* OP: rank R is out of range for N ranks (ranks start at 0). LM_E_ARG. */
LM_API lm_status lm_fail_rank(const char *op, int64_t rank, int64_t size);
/* OP: NAME must have N entries, one for each EACH, got M. LM_E_ARG. */
lm_status lm_fail_length(const char *op, const char *name, int n, const char *each, int got);
/* OP: NAME must be BOUND, got DEVICE. LM_E_DEVICE. */
LM_API lm_status lm_fail_device(const char *op, const char *name, const char *bound, const char *got);
/* wait: CALL is not done after S s and continues. LM_E_STATE. */
lm_status lm_fail_wait(const char *call, double seconds);

/* ---- files. In a path, control characters become '?', newlines too, and a long one loses its middle. Other text from
 * a file must go through lm_ellipsize. Offsets count from 0; positions in text, such as JSON, from 1. */

/* cannot VERB 'PATH': REASON; VERB is "open", "read", "write", ... LM_E_IO. */
LM_API lm_status lm_fail_file(const char *verb, const char *path, const char *reason);
/* 'PATH': malformed PART at byte N: REASON; PART is "safetensors header", "tar member", ... LM_NO_OFFSET as `at` leaves
 * out "at byte N". LM_E_IO. */
#define LM_NO_OFFSET (-1)
LM_API lm_status lm_fail_malformed(const char *path, const char *part, int64_t at, const char *reason, ...)
    LM_PRINTF(4, 5);
/* 'PATH': truncated: needs N bytes at byte N2, the file has N3. LM_E_IO. */
lm_status lm_fail_truncated(const char *path, uint64_t needed, uint64_t at, uint64_t bytes);
/* 'PATH': REASON, for every other error about a file's contents. */
LM_API lm_status lm_fail_in_file(lm_status status, const char *path, const char *reason, ...) LM_PRINTF(3, 4);

/* ---- the system and other libraries; the caller that knows the called function prefixes its name (lm_fail_in) */

/* OP: CALL: error CODE (NAME): TEXT, for a call of another library. op, name and text may be NULL; `call` is cut at its
 * first parenthesis. */
LM_API lm_status lm_fail_call(lm_status status, const char *op, const char *call, int code, const char *name,
                              const char *text);
/* cannot allocate WHAT: out of memory; WHAT is "N bytes", or "memory for ...". LM_E_OOM. */
LM_API lm_status lm_fail_memory(const char *format, ...) LM_PRINTF(1, 2);
