/* Loops of Fourier transforms, float or double: of LM_FFT_LANES lines side by side, so that every step is one of whole
 * vectors. A block is two planes [n][LM_FFT_LANES], real and imaginary parts; elsewhere complex numbers are pairs, and
 * steps between them count these. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_FFT_LANES = 16, LM_FFT_MAX_RADIX = 13 };

typedef struct lm_fft_block {
  void *re, *im;
} lm_fft_block;

struct lm_fft_loops {
  /* One pass of Stockham's algorithm, which needs no reordering: transforms of `radix` entries that lie m s apart.
   * twiddle: pairs exp(-2 pi i p k / (radix m)), for each p < m those of k = 1 to radix - 1. */
  void (*stage)(int radix, int64_t m, int64_t s, const void *twiddle, lm_fft_block from, lm_fft_block to);
  /* `lanes` lines that begin `line` numbers apart, with entries `entry` pairs apart, into a block, and back, there
   * `line` pairs apart, times scale. */
  void (*load)(const void *in, int64_t entry, int64_t line, int64_t n, int lanes, lm_fft_block to);
  void (*store)(lm_fft_block from, int64_t entry, int64_t line, int64_t n, int lanes, double scale, void *out);
  /* What store made of dense lines, to where it belongs, in one go: lines that are written side by side each wait for
   * memory. streams: past the caches. */
  void (*copy)(bool streams, void *dst, const void *src, size_t bytes);
  /* Row k of the block times pairs[k] times that of lane l: `lane` has LM_FFT_LANES real parts and as many imaginary
   * ones for each row. */
  void (*turn)(int64_t n, const void *pairs, const void *lane, lm_fft_block x);
  /* A line z of n / 2 pairs, the transform of a real line of even n read as pairs, becomes its n / 2 + 1 first entries
   * in place; and the other way. twiddle: exp(-2 pi i k / n), k up to n / 4. `join` reads x and writes z. inner: a
   * factor for all entries of x but the first and the last. */
  void (*part)(int64_t n, const void *twiddle, double inner, void *z);
  void (*join)(int64_t n, const void *twiddle, double inner, const void *x, void *z);
  /* The same of a block of n / 2 + 1 rows, in place. */
  void (*part_block)(int64_t n, const void *twiddle, double inner, lm_fft_block z);
  void (*join_block)(int64_t n, const void *twiddle, double inner, lm_fft_block x);
  /* Row j of a block of n rows times window[2 j], its imaginary parts times window[2 j + 1]. */
  void (*weigh)(int64_t n, const void *window, lm_fft_block x);
  /* sum[i] += x[i] times y[i], of n numbers. */
  void (*add_product)(int64_t n, const void *x, const void *y, void *sum);
  /* x[i] = x[i] times y[i], pairs. */
  void (*multiply)(int64_t n, const void *y, void *x);
};

LM_ISA_DECLARE(struct lm_fft_loops, lm_fft_F32);
LM_ISA_DECLARE(struct lm_fft_loops, lm_fft_F64);

static inline const struct lm_fft_loops *lm_fft_loops_of(lm_dtype dtype) {
  return dtype == LM_F64 ? LM_ISA_PICK(lm_fft_F64) : LM_ISA_PICK(lm_fft_F32);
}
