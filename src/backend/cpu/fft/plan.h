/* Plans the transform of a length, with its tables. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/linalg/fft.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/scalar_access.h"

/* A length without a prime factor above LM_FFT_MAX_RADIX, as passes of small radices. */
typedef struct lm_fft_passes {
  int64_t n; /* numbers of a line; 0: the plan has no such passes */
  int count;
  int8_t radix[64];
  void *twiddle; /* factors of all passes, one after the other */
} lm_fft_passes;

/* A plan for lines of n numbers: in blocks (`whole`); or, for long or few lines, each as n1 rows of n2: transforms down
 * the columns, factors exp(-2 pi i k1 j2 / n), transforms along the rows; or, if n has a large prime factor, as a
 * convolution with a chirp (Bluestein), by transforms of a power of 2. */
typedef struct lm_fft_plan {
  int64_t n;
  lm_dtype dtype;
  bool real;     /* true if it has `halves` */
  int users;     /* reference count, under the cache's lock */
  uint64_t used; /* number of the last use; the cache drops the plan with the lowest */
  lm_fft_passes whole, first, second;
  void *lane;         /* first.n rows for lm_fft_loops.turn */
  int64_t fine_count; /* exp(-2 pi i a / n) is coarse[a / fine_count] times fine[a % fine_count] */
  double *coarse, *fine;
  struct lm_fft_plan *powers; /* Bluestein: the plan of a power of 2 */
  void *chirp, *filter;
  void *halves; /* exp(-2 pi i k / (2 n)), k up to n / 2, for real lines of 2 n */
} lm_fft_plan;

/* Sets *out to a plan from the cache, or a new one; the caller passes it to lm_fft_plan_done. */
lm_status lm_fft_plan_get(int64_t n, lm_dtype dtype, bool real, lm_fft_plan **out);
void lm_fft_plan_done(lm_fft_plan *plan); /* NULL is allowed */
static inline void lm_fft_plan_drop(lm_fft_plan **plan) { lm_fft_plan_done(*plan); }
/* Declares a plan, NULL or one that the block is done with at its end, as in LM_FFT_PLAN *rows = NULL. */
#define LM_FFT_PLAN __attribute__((cleanup(lm_fft_plan_drop))) lm_fft_plan

/* Transforms `lines` lines of pairs; out may be in; steps between lines are in pairs. */
lm_status lm_fft_lines(const lm_fft_plan *plan, int64_t lines, const void *in, int64_t in_step, void *out,
                       int64_t out_step, bool inverse, double scale);
