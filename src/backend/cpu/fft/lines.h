/* Lines on their way through blocks. */
#pragma once

#include "backend/cpu/fft/plan.h"

/* What one kind of blocks is made of and goes to, in pairs, but in_line and in_batch, the steps from line to line and
 * from one batch of lines to the next, in numbers; the inverse swaps real and imaginary parts, twice. Half of a real
 * line's transform has an entry more than the pairs that the line is read as. */
enum { LM_FFT_COMPLEX, LM_FFT_REAL_TO_HALF, LM_FFT_HALF_TO_REAL };
typedef struct lm_fft_walk {
  const lm_fft_plan *plan;
  const lm_fft_passes *passes;
  int64_t lines;
  const char *in;
  char *out;
  int64_t in_entry, in_line, out_entry, out_line, batches, in_batch, out_batch;
  int kind;
  bool swap_in, swap_out, transposed;
  bool streams; /* dense lines, which nobody reads at once */
  double scale;
  double inner;       /* of half a transform: a factor for the entries that stand for two */
  const void *window; /* factors of real lines; NULL: none */
} lm_fft_walk;

lm_status lm_fft_run(const lm_fft_walk *walk);
/* The same for `many` batches whose results are each dense, `bytes` long, and stay in a cache until the last of the
 * steps; the first reads its batch, and each that follows what the one before it made, which it replaces. False:
 * batches are too large or too few, and nothing was done. */
bool lm_fft_cached_batches(const lm_fft_walk *steps, int count, char *out, int64_t many, size_t bytes, bool streams,
                           lm_status *status);

/* Whether lines of a plan go through blocks. */
bool lm_fft_in_blocks(const lm_fft_plan *plan, int64_t lines);

/* Memory for a call, from the allocator that keeps it for the next. */
lm_status lm_fft_scratch(size_t bytes, lm_tensor **out);
