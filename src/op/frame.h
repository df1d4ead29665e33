/* Holds the temporaries and results of a running op, and releases them in one place. Functions that
 * op/entries/write_operands.lua writes use these; some ops written by hand do, too.
 *
 * The op's own argument struct, `run`, starts as a copy of the caller's. Functions that take a tensor ** replace that
 * tensor by one the kernel accepts, of which the frame owns a reference; NULL stays NULL. */
#pragma once

#include "op/input_layout.h"

enum { LM_FRAME_TENSORS = 64 }; /* capacity: each tensor is replaced at most five times */

typedef struct lm_frame {
  lm_op_id op;
  int n;                             /* number of tensors in held */
  bool unbatched;                    /* true if the caller's images have no batch dim */
  lm_tensor *held[LM_FRAME_TENSORS]; /* temporaries */
  lm_tensor *result[LM_MAX_OUTS];    /* results of the op */
  lm_tensor *slot[LM_MAX_OUTS];      /* results for the kernel, perhaps views of them; borrowed */
} lm_frame;

static inline void lm_frame_begin(lm_frame *f, lm_op_id op) {
  f->op = op;
  f->n = 0;
  f->unbatched = false;
  for (int i = 0; i < LM_MAX_OUTS; i++) f->result[i] = f->slot[i] = NULL;
}
/* Declares and begins a frame, whose tensors are released when the block ends. */
#define LM_FRAME(f, op)                               \
  lm_frame f __attribute__((cleanup(lm_frame_drop))); \
  lm_frame_begin(&f, op)
void lm_frame_drop(lm_frame *f);
/* Moves the results to out; returns LM_OK. */
lm_status lm_frame_end(lm_frame *f, lm_tensor **out);
/* Moves t's reference to the frame; returns t. */
lm_tensor *lm_frame_hold(lm_frame *f, lm_tensor *t);

/* ---- operands */

/* Add a batch dim of 1 to images of ndim - 1 dims ([C, H, W]), and to their sizes. */
lm_status lm_frame_batch(lm_frame *f, lm_tensor **t, int ndim);
void lm_frame_batch_sizes(lm_frame *f, lm_ints *size, int ndim);
lm_status lm_frame_layout(lm_frame *f, lm_tensor **t, lm_format format);
lm_status lm_frame_layout_like(lm_frame *f, lm_tensor **t, const lm_tensor *like);
/* Replaces *t by a contiguous copy if its elements have gaps. */
lm_status lm_frame_dense(lm_frame *f, lm_tensor **t);
/* Replaces *t by a contiguous copy that nobody else can write to, unless it is that already. */
lm_status lm_frame_private(lm_frame *f, lm_tensor **t);
/* Replaces *t, of any integers, by contiguous private int64. */
lm_status lm_frame_index(lm_frame *f, const char *name, lm_tensor **t);
lm_status lm_frame_convert(lm_frame *f, lm_tensor **t, lm_dtype dtype);
/* Makes *t contiguous, of `dtype` and on `device`; so a Lua number's tensor, on the CPU, reaches a kernel. */
lm_status lm_frame_contiguous_in(lm_frame *f, lm_tensor **t, lm_dtype dtype, lm_device device);
/* Normalizes *dim to count from 0, and makes *x at least 1-d. */
lm_status lm_frame_line(lm_frame *f, lm_tensor **x, int64_t *dim);
lm_status lm_frame_at_least_1d(lm_frame *f, lm_tensor **t);
/* Replaces *t, contiguous, by a view of other sizes. */
lm_status lm_frame_reshape(lm_frame *f, lm_tensor **t, int ndim, const int64_t *size);
/* Broadcast batch dims, all but the last `last`: combine t's with *batch, and expand *t to them. */
lm_status lm_frame_broadcast(const lm_frame *f, lm_ints *batch, const lm_tensor *t, int last);
lm_status lm_frame_expand(lm_frame *f, lm_tensor **t, const lm_ints *batch, int last);

/* ---- sizes: some of a tensor's dims as a list, without `lead` dims before and `tail` dims after them */

lm_ints lm_sizes_between(int ndim, const int64_t *size, int lead, int tail);
bool lm_sizes_are(const lm_ints *sizes, int ndim, const int64_t *size, int lead, int tail);
/* Concatenates before, `sizes` and after. LM_E_ARG for more than LM_MAX_DIMS. */
lm_status lm_sizes_join(const lm_frame *f, int lead, const int64_t *before, const lm_ints *sizes, int tail,
                        const int64_t *after, lm_ints *out);
/* Return text for messages: "[2, 3]", "2, 3, " and ", 2, 3". */
static inline const char *lm_sizes_text(const lm_ints *sizes) { return lm_shape_text(sizes->n, sizes->v); }
const char *lm_sizes_before(const lm_ints *sizes);
const char *lm_sizes_after(const lm_ints *sizes);

/* ---- results */

lm_status lm_frame_result(lm_frame *f, int i, lm_dtype dtype, lm_device device, int ndim, const int64_t *size,
                          lm_format format);
lm_status lm_frame_result_like(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like);
/* Creates result i in the layout of `like` if that has the same sizes and rows of its own, else contiguous. */
lm_status lm_frame_result_near(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like, int ndim,
                               const int64_t *size);
/* Makes result i's matrices column-major. */
void lm_frame_columns(lm_frame *f, int i);
/* Calls the kernel, unless every result is empty. */
lm_status lm_frame_dispatch(lm_frame *f, lm_device device, const void *run);
/* Calls the kernel, unless every result is empty; the CPU computes if the device has no kernel. */
lm_status lm_frame_dispatch_or_host(lm_frame *f, lm_device device, const void *run);
/* Sets all results to 0. */
lm_status lm_frame_zero(lm_frame *f);
lm_status lm_frame_convert_result(lm_frame *f, int i, lm_dtype dtype);
/* Removes the batch dim that lm_frame_batch added. */
void lm_frame_unbatch(lm_frame *f, int i);
