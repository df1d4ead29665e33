/* Declares loops of Fourier transforms, float or double, of LM_FFT_LANES lines side by side, so that every step takes
 * whole vectors. A block is two planes [n][LM_FFT_LANES], real and imaginary parts; elsewhere complex numbers are
 * pairs, and steps between them are in pairs. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_FFT_LANES = 16, LM_FFT_MAX_RADIX = 13 };

typedef struct lm_fft_block {
  void *re, *im;
} lm_fft_block;

struct lm_fft_loops {
  /* Runs one pass of Stockham's algorithm, which needs no reordering: transforms of `radix` entries that are m s apart.
   * twiddle: pairs exp(-2 pi i p k / (radix m)), for each p < m those of k = 1 to radix - 1. */
  void (*stage)(int radix, int64_t m, int64_t s, const void *twiddle, lm_fft_block from, lm_fft_block to);
  /* Load `lanes` lines that begin `line` numbers apart, with entries `entry` pairs apart, into a block, and store it,
   * times scale, to lines `line` pairs apart. */
  void (*load)(const void *in, int64_t entry, int64_t line, int64_t n, int lanes, lm_fft_block to);
  void (*store)(lm_fft_block from, int64_t entry, int64_t line, int64_t n, int lanes, double scale, void *out);
  /* Copies dense lines, made by `store`, to the result at once, since writes of several lines in turn each wait for
   * memory. streams: past the caches. */
  void (*copy)(bool streams, void *dst, const void *src, size_t bytes);
  /* Multiplies row k of the block by pairs[k], and its lane l by the lane's factor: `lane` has LM_FFT_LANES real parts
   * and as many imaginary ones for each row. */
  void (*turn)(int64_t n, const void *pairs, const void *lane, lm_fft_block x);
  /* Convert a line z of n / 2 pairs, the transform of a real line of even n read as pairs, to its first n / 2 + 1
   * entries in place (part), and back (join, which reads x and writes z). twiddle: exp(-2 pi i k / n), k up to n / 4.
   * inner: a factor for all entries of x but the first and the last. */
  void (*part)(int64_t n, const void *twiddle, double inner, void *z);
  void (*join)(int64_t n, const void *twiddle, double inner, const void *x, void *z);
  /* Convert a block of n / 2 + 1 rows like a line by part and join, in place. */
  void (*part_block)(int64_t n, const void *twiddle, double inner, lm_fft_block z);
  void (*join_block)(int64_t n, const void *twiddle, double inner, lm_fft_block x);
  /* Multiplies row j of a block of n rows by window[2 j], its imaginary parts by window[2 j + 1]. */
  void (*weigh)(int64_t n, const void *window, lm_fft_block x);
  /* Adds x[i] times y[i] to sum[i], for n numbers. */
  void (*add_product)(int64_t n, const void *x, const void *y, void *sum);
  /* Multiplies x[i] by y[i], for n pairs. */
  void (*multiply)(int64_t n, const void *y, void *x);
};

LM_ISA_DECLARE_REAL(struct lm_fft_loops, lm_fft_loops)
