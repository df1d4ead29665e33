/* The frame of an op that runs: the temporaries and the results it has made, released in one place. Functions that
 * op/entries/write_operands.lua writes are made of these; some ops written by hand use them too.
 *
 * An argument struct of the op's own, `run`, starts as a copy of the caller's. Functions that take a tensor ** replace
 * one of its tensors by what the slot wants, of which the frame owns a reference; NULL stays. */
#pragma once

#include "op/input_layout.h"

enum { LM_FRAME_TENSORS = 64 }; /* a tensor is replaced five times at most */

typedef struct lm_frame {
  lm_op_id op;
  int n;                             /* of held */
  bool unbatched;                    /* the caller's images have no batch dim */
  lm_tensor *held[LM_FRAME_TENSORS]; /* temporaries */
  lm_tensor *result[LM_MAX_OUTS];    /* the op's */
  lm_tensor *slot[LM_MAX_OUTS];      /* the same as the slot gets them: views of them perhaps. Borrowed */
} lm_frame;

static inline void lm_frame_begin(lm_frame *f, lm_op_id op) {
  f->op = op;
  f->n = 0;
  f->unbatched = false;
  for (int i = 0; i < LM_MAX_OUTS; i++) f->result[i] = f->slot[i] = NULL;
}
/* Releases the temporaries; the results become the caller's or, on an error, are released. Returns status. */
lm_status lm_frame_end(lm_frame *f, lm_status status, lm_tensor **out);
/* The frame takes over t. */
lm_tensor *lm_frame_hold(lm_frame *f, lm_tensor *t);

/* ---- operands */

/* Images [C, H, W], of ndim - 1 dims, become a batch of one; sizes of such get a 1. */
lm_status lm_frame_batch(lm_frame *f, lm_tensor **t, int ndim);
void lm_frame_batch_sizes(lm_frame *f, lm_ints *size, int ndim);
lm_status lm_frame_layout(lm_frame *f, lm_tensor **t, lm_format format);
lm_status lm_frame_layout_like(lm_frame *f, lm_tensor **t, const lm_tensor *like);
/* As it is if its elements have no gaps, else contiguous. */
lm_status lm_frame_dense(lm_frame *f, lm_tensor **t);
/* Contiguous, and memory that nobody else writes to meanwhile. */
lm_status lm_frame_private(lm_frame *f, lm_tensor **t);
/* Any integers, as contiguous private int64. */
lm_status lm_frame_index(lm_frame *f, const char *name, lm_tensor **t);
lm_status lm_frame_convert(lm_frame *f, lm_tensor **t, lm_dtype dtype);
/* Makes *t contiguous, of `dtype` and on `device`; a number's tensor, which is on the CPU, gets to a kernel so. */
lm_status lm_frame_contiguous_in(lm_frame *f, lm_tensor **t, lm_dtype dtype, lm_device device);
/* A dim counted from 0, and at least one dim for *x, of which it is one. */
lm_status lm_frame_line(lm_frame *f, lm_tensor **x, int64_t *dim);
lm_status lm_frame_at_least_1d(lm_frame *f, lm_tensor **t);
/* A contiguous tensor with other sizes. */
lm_status lm_frame_reshape(lm_frame *f, lm_tensor **t, int ndim, const int64_t *size);
/* Batches, all dims but the last `last`: the sizes they broadcast to, and a tensor expanded to those. */
lm_status lm_frame_broadcast(const lm_frame *f, lm_ints *batch, const lm_tensor *t, int last);
lm_status lm_frame_expand(lm_frame *f, lm_tensor **t, const lm_ints *batch, int last);

/* ---- sizes: some of a tensor's dims as a list, `lead` before and `tail` after them */

lm_ints lm_sizes_between(int ndim, const int64_t *size, int lead, int tail);
bool lm_sizes_are(const lm_ints *sizes, int ndim, const int64_t *size, int lead, int tail);
/* Both, and between them `sizes`. LM_E_ARG for too many. */
lm_status lm_sizes_join(const lm_frame *f, int lead, const int64_t *before, const lm_ints *sizes, int tail,
                        const int64_t *after, lm_ints *out);
/* For messages: "[2, 3]", "2, 3, " and ", 2, 3". */
static inline const char *lm_sizes_text(const lm_ints *sizes) { return lm_shape_text(sizes->n, sizes->v); }
const char *lm_sizes_before(const lm_ints *sizes);
const char *lm_sizes_after(const lm_ints *sizes);

/* ---- results */

lm_status lm_frame_result(lm_frame *f, int i, lm_dtype dtype, lm_device device, int ndim, const int64_t *size,
                          lm_format format);
lm_status lm_frame_result_like(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like);
/* Laid out as `like` where that has the same sizes, else contiguous. */
lm_status lm_frame_result_near(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like, int ndim,
                               const int64_t *size);
/* Result i's matrices become column-major. */
void lm_frame_columns(lm_frame *f, int i);
/* Calls the slot, unless every result is empty. */
lm_status lm_frame_dispatch(lm_frame *f, lm_device device, const void *run);
/* The same; the CPU computes where the device has no kernel. */
lm_status lm_frame_dispatch_or_host(lm_frame *f, lm_device device, const void *run);
/* All results become 0. */
lm_status lm_frame_zero(lm_frame *f);
lm_status lm_frame_convert_result(lm_frame *f, int i, lm_dtype dtype);
/* Takes off the batch dim that lm_frame_batch had added. */
void lm_frame_unbatch(lm_frame *f, int i);
