/* The logarithm of the gamma function and its derivatives, computed in double. For C and CUDA. The first three are
 * without branches, so that loops vectorize.
 *
 * Stirling's series (Abramowitz and Stegun 6.1.41, 6.3.18, 6.4.12) at t >= 8; what is less comes there by the
 * recurrence gamma(x + 1) = x gamma(x), and what is below 1/2 by the reflection gamma(x) gamma(1 - x) = pi / sin(pi x).
 */
#pragma once

#include <math.h>

#if defined(__CUDACC__)
#define LM_GAMMA __host__ __device__ static inline
#else
#define LM_GAMMA static inline __attribute__((always_inline, unused))
#endif

/* p = y (y + 1) … (y + 7) and its derivative. */
#define LM_EIGHT_UP(y, p, slope) \
  double p = (y), slope = 1;     \
  for (int k = 1; k < 8; k++) { slope = slope * ((y) + k) + p, p = p * ((y) + k); }

LM_GAMMA double lm_lgamma(double x) {
  double y = x < 0.5 ? 1 - x : x;
  LM_EIGHT_UP(y, product, slope)
  double t = y < 8 ? y + 8 : y, u = 1 / t, u2 = u * u;
  double series =
      u *
      (1.0 / 12 -
       u2 * (1.0 / 360 - u2 * (1.0 / 1260 - u2 * (1.0 / 1680 - u2 * (1.0 / 1188 - u2 * (691.0 / 360360 - u2 / 156))))));
  double far = (t - 0.5) * (log(t) - 1) + 0.41893853320467274178 + series;
  double up = y < 8 ? product : 1, from_whole = x - rint(x);
  double mirror = 3.14159265358979323846 * up / fabs(sin(3.14159265358979323846 * from_whole));
  double close = log(x < 0.5 ? mirror : up), value = x < 0.5 ? close - far : far - close;
  (void)slope;
  return x - x == 0 ? value : fabs(x);
}

LM_GAMMA double lm_digamma(double x) {
  double y = x < 0.5 ? 1 - x : x;
  LM_EIGHT_UP(y, product, slope)
  double t = y < 8 ? y + 8 : y, u = 1 / t, u2 = u * u;
  double series =
      u2 * (1.0 / 12 -
            u2 * (1.0 / 120 - u2 * (1.0 / 252 - u2 * (1.0 / 240 - u2 * (1.0 / 132 - u2 * (691.0 / 32760 - u2 / 12))))));
  double value = log(t) - 0.5 * u - series - (y < 8 ? slope / product : 0);
  double from_whole = x == 0 ? x : x - rint(x),
         mirror = value - 3.14159265358979323846 / tan(3.14159265358979323846 * from_whole);
  double low = x < 0 && from_whole == 0 ? NAN : mirror; /* poles, except 0 */
  return x < 0.5 ? (x - x == 0 ? low : NAN) : value;
}

/* Below t = 8 the sum of 1 / (y + k)^2 is (p' / p)^2 - p'' / p of p = y (y + 1) … (y + 7). */
LM_GAMMA double lm_trigamma(double x) {
  double y = x < 0.5 ? 1 - x : x, p = y, slope = 1, bend = 0;
  for (int k = 1; k < 8; k++) {
    bend = bend * (y + k) + 2 * slope;
    slope = slope * (y + k) + p;
    p = p * (y + k);
  }
  double t = y < 8 ? y + 8 : y, u = 1 / t, u2 = u * u, each = 1 / p, inverse = slope * each;
  double series =
      u2 * (1.0 / 6 -
            u2 * (1.0 / 30 -
                  u2 * (1.0 / 42 -
                        u2 * (1.0 / 30 -
                              u2 * (5.0 / 66 - u2 * (691.0 / 2730 -
                                                     u2 * (7.0 / 6 - u2 * (3617.0 / 510 - u2 * 43867.0 / 798))))))));
  double value = u * (1 + 0.5 * u + series) + (y < 8 ? inverse * inverse - bend * each : 0);
  double from_whole = x - rint(x), sine = sin(3.14159265358979323846 * from_whole);
  double mirror = 9.86960440108935861883 / (sine * sine) - value;
  return x < 0.5 ? mirror : value;
}

/* 1 / q^s of an integer s, whose few products are quicker than pow. */
LM_GAMMA double lm_inverse_power(double q, double s) {
  if (s > 8) return pow(q, -s);
  double each = 1 / q, power = each;
  for (int k = 1; k < (int)s; k++) power *= each;
  return power;
}

/* sum over k >= 0 of 1 / (q + k)^s, s an integer above 1 (Hurwitz's zeta), by Euler and Maclaurin's formula from q + k
 * > 9 on, as Cephes' zeta.c. Poles are infinite. */
LM_GAMMA double lm_hurwitz(double s, double q) {
  static const double over[] = {12.0,
                                -720.0,
                                30240.0,
                                -1209600.0,
                                47900160.0,
                                -1.8924375803183791606e9,
                                7.47242496e10,
                                -2.950130727918164224e12,
                                1.1646782814350067249e14,
                                -4.5979787224074726105e15,
                                1.8152105401943546773e17,
                                -7.1661652561756670113e18};
  double sum = 0;
  if (q <= 0 && q == floor(q)) return INFINITY;
  if (q < -1e4 || !(q - q == 0)) return q > 0 ? 0 : NAN;
  while (q <= 9) sum += lm_inverse_power(q, s), q += 1;
  double term = lm_inverse_power(q, s), factor = 1;
  sum += term * q / (s - 1) + 0.5 * term;
  for (int k = 0; k < 12; k++) {
    factor *= s + 2 * k, term /= q;
    double more = factor * term / over[k];
    sum += more;
    if (fabs(more) < 1e-17 * fabs(sum)) break;
    factor *= s + 2 * k + 1, term /= q;
  }
  return sum;
}

/* The derivative of order n of digamma: (-1)^(n + 1) n! zeta(n + 1, x). */
LM_GAMMA double lm_polygamma(double x, double n) {
  if (n == 0) return lm_digamma(x);
  if (n == 1) return lm_trigamma(x);
  if (x != x) return x;
  double factorial = 1;
  for (int k = 2; k <= (int)n; k++) factorial *= k;
  return ((int)n % 2 ? factorial : -factorial) * lm_hurwitz(n + 1, x);
}
