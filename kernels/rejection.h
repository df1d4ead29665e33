/* Draws random numbers that take any number of random bits: element i of a draw has the LM_ROOM blocks of
 * kernels/philox.h from offset + i * LM_ROOM on, two uniforms in each. It needs more with a probability below 1e-30;
 * then it continues with its neighbor's. For C and CUDA. */
#pragma once

#include <stdbool.h>

#include "gamma_functions.h"
#include "philox.h"

enum { LM_ROOM = 64 };

typedef struct lm_uniforms {
  uint64_t seed, block; /* block: the next one */
  double other;         /* the second uniform of the last block, if `half` */
  bool half;
} lm_uniforms;

LM_DEVICE_CODE lm_uniforms lm_uniforms_of(uint64_t seed, uint64_t offset, int64_t i) {
  lm_uniforms u;
  u.seed = seed, u.block = offset + (uint64_t)i * LM_ROOM, u.other = 0, u.half = false;
  return u;
}

/* Returns the next uniform, in (0, 1]. */
LM_DEVICE_CODE double lm_next_uniform(lm_uniforms *u) {
  u->half = !u->half;
  if (!u->half) return u->other;
  lm_philox_block b = lm_philox(u->seed, u->block++);
  u->other = 1 - lm_uniform_f64(lm_philox_u64(b, 1));
  return 1 - lm_uniform_f64(lm_philox_u64(b, 0));
}

LM_DEVICE_CODE double lm_log_factorial(double k) { return lm_lgamma(k + 1); }

/* Draws a Poisson number, rate >= 0. Rates below 10 multiply uniforms (Knuth); others take Hörmann's PTRS ("The
 * transformed rejection method for generating Poisson random variables", 1993). */
LM_DEVICE_CODE double lm_poisson(double rate, lm_uniforms *u) {
  if (rate == 0 || rate != rate) return rate;
  if (rate < 10) {
    double least = exp(-rate), product = lm_next_uniform(u);
    int k = 0;
    while (product > least) product *= lm_next_uniform(u), k++;
    return k;
  }
  double log_rate = log(rate), b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
  double scale = log(1.1239 + 1.1328 / (b - 3.4)), inner = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    double x = lm_next_uniform(u) - 0.5, v = lm_next_uniform(u), edge = 0.5 - fabs(x);
    double k = floor((2 * a / edge + b) * x + rate + 0.43);
    if (edge >= 0.07 && v <= inner) return k;
    if (k < 0 || (edge < 0.013 && v > edge)) continue;
    if (log(v) + scale - log(a / (edge * edge) + b) <= k * log_rate - rate - lm_log_factorial(k)) return k;
  }
}

/* Returns ln k! less Stirling's formula. */
LM_DEVICE_CODE double lm_stirling_tail(double k) {
  double n = k + 1, n2 = n * n;
  if (k > 9) return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / n2) / n2) / n;
  return lm_log_factorial(k) - ((k + 0.5) * log(n) - n + 0.91893853320467274178);
}

/* Draws by Hörmann's BTRS ("The generation of binomial random variates", 1993): count p >= 10, p <= 1/2. */
LM_DEVICE_CODE double lm_binomial_large(double count, double p, lm_uniforms *u) {
  double deviation = sqrt(count * p * (1 - p)), b = 1.15 + 2.53 * deviation;
  double a = -0.0873 + 0.0248 * b + 0.01 * p, center = count * p + 0.5, inner = 0.92 - 4.2 / b;
  double odds = p / (1 - p), alpha = (2.83 + 5.1 / b) * deviation, mode = floor((count + 1) * p);
  for (;;) {
    double x = lm_next_uniform(u) - 0.5, v = lm_next_uniform(u), edge = 0.5 - fabs(x);
    double k = floor((2 * a / edge + b) * x + center);
    if (edge >= 0.07 && v <= inner) return k;
    if (k < 0 || k > count) continue;
    double most = (mode + 0.5) * log((mode + 1) / (odds * (count - mode + 1))) +
                  (count + 1) * log((count - mode + 1) / (count - k + 1)) +
                  (k + 0.5) * log(odds * (count - k + 1) / (k + 1)) + lm_stirling_tail(mode) +
                  lm_stirling_tail(count - mode) - lm_stirling_tail(k) - lm_stirling_tail(count - k);
    if (log(v * alpha / (a / (edge * edge) + b)) <= most) return k;
  }
}

/* Draws a binomial number, count >= 0, p in [0, 1]. If few trials succeed, draws the trials between successes. */
LM_DEVICE_CODE double lm_binomial(double count, double p, lm_uniforms *u) {
  count = floor(count);
  if (count != count || p != p) return count + p;
  bool transposed = p > 0.5;
  double q = transposed ? 1 - p : p, k = 0;
  if (count <= 0 || q <= 0) return transposed ? count : 0;
  if (count * q >= 10) {
    k = lm_binomial_large(count, q, u);
  } else {
    double trials = 0, rest = log1p(-q);
    for (;; k++) {
      double more = ceil(log(lm_next_uniform(u)) / rest);
      trials += more > 1 ? more : 1;
      if (trials > count) break;
    }
  }
  return transposed ? count - k : k;
}
