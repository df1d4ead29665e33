/* Transforms lines in blocks of LM_FFT_LANES. */
#pragma once

#include "backend/cpu/fft/plan.h"

/* A walk over lines of one kind. Steps are in pairs, except the input's from line to line and from one batch of lines
 * to the next, in numbers. The inverse transform swaps real and imaginary parts of the input and of the result. Half a
 * real line's transform has one entry more than the line has pairs. */
enum { LM_FFT_COMPLEX, LM_FFT_REAL_TO_HALF, LM_FFT_HALF_TO_REAL };
typedef struct lm_fft_side {
  char *data;                 /* written only if it is the output's */
  int64_t entry, line, batch; /* steps from one to the next */
} lm_fft_side;
typedef struct lm_fft_walk {
  const lm_fft_plan *plan;
  const lm_fft_passes *passes;
  int64_t lines, batches;
  lm_fft_side in, out;
  int kind;
  bool swap_in, swap_out, transposed;
  bool streams; /* true if dense lines bypass the caches, since they are not read soon */
  double scale;
  double inner;       /* half transforms: a factor for entries that represent two */
  const void *window; /* factors of real lines, or NULL */
} lm_fft_walk;

lm_status lm_fft_run(const lm_fft_walk *walk);
/* Runs the steps for `many` batches, whose results are each dense, `bytes` long, and stay in a cache until the last
 * step. The first step reads its batch, and each other one the result of the step before, which it replaces. Returns
 * false, with nothing done, if batches are too large or too few. */
bool lm_fft_cached_batches(const lm_fft_walk *steps, int count, char *out, int64_t many, size_t bytes, bool streams,
                           lm_status *status);

/* Returns true if a plan transforms this many lines in blocks. */
bool lm_fft_in_blocks(const lm_fft_plan *plan, int64_t lines);
