/* Computes the logarithm of the gamma function and its derivatives in double. For C and CUDA. The first three have no
 * branches, so that loops vectorize.
 *
 * Stirling's series (Abramowitz and Stegun 6.1.41, 6.3.18, 6.4.12) at t >= 8; lower arguments are raised by the
 * recurrence gamma(x + 1) = x gamma(x), those below 1/2 by the reflection gamma(x) gamma(1 - x) = pi / sin(pi x). */
#pragma once

#include <math.h>

#if defined(__CUDACC__)
#define LM_GAMMA __host__ __device__ static inline
#else
#define LM_GAMMA static inline __attribute__((always_inline, unused))
#endif

/* Declares p = y (y + 1) … (y + 7) and its derivative. */
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

/* Returns trigamma(x). For y < 8 adds 1 / (y + k)^2, k = 0 … 7: (p' / p)^2 - p'' / p for p = y (y + 1) … (y + 7). */
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

/* Returns 1 / q^s for an integer s, for which a few products are quicker than pow. */
LM_GAMMA double lm_inverse_power(double q, double s) {
  if (s > 8) return pow(q, -s);
  double each = 1 / q, power = each;
  for (int k = 1; k < (int)s; k++) power *= each;
  return power;
}

/* Returns the sum over k >= 0 of 1 / (q + k)^s, s an integer above 1 (Hurwitz zeta), by the Euler-Maclaurin formula
 * from q + k > 9 on, as Cephes' zeta.c. Poles are infinite. */
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

/* Returns the derivative of order n of digamma: (-1)^(n + 1) n! zeta(n + 1, x). */
LM_GAMMA double lm_polygamma(double x, double n) {
  if (n == 0) return lm_digamma(x);
  if (n == 1) return lm_trigamma(x);
  if (x != x) return x;
  double factorial = 1;
  for (int k = 2; k <= (int)n; k++) factorial *= k;
  return ((int)n % 2 ? factorial : -factorial) * lm_hurwitz(n + 1, x);
}

/* Returns the summed factor of the incomplete gamma function: P(a, x) is x^a e^-x / gamma(a + 1) times a power series
 * for x < a + 1, and 1 - x^a e^-x / gamma(a) times a continued fraction beyond, by Lentz's method (Abramowitz and
 * Stegun 6.5.29, 6.5.31). *slope: its derivative by a. x > 0, 0 < a <= LM_IGAMMA_SUMMED. */
LM_GAMMA double lm_igamma_factor(double a, double x, double *slope) {
  double value = 1, by_a = 0;
  if (x < a + 1) {
    double term = 1, inverses = 0;
    for (int n = 1; n < 100000 && term * (1 + inverses) > 1e-17 * value; n++) {
      term *= x / (a + n), inverses += 1 / (a + n);
      value += term, by_a -= term * inverses;
    }
  } else {
    double b = x + 1 - a, c = 1e300, c_by_a = 0, d = 1 / b, d_by_a = d * d, off = 1;
    value = d, by_a = d_by_a;
    for (int n = 1; n < 100000 && off > 4e-15; n++) {
      double part = n * (a - n), was = d;
      b += 2;
      c_by_a = -1 + n / c - part * c_by_a / c / c, c = b + part / c;
      d = 1 / (b + part * d), d_by_a = -d * d * (-1 + n * was + part * d_by_a);
      double change = c * d, change_by_a = c_by_a * d + c * d_by_a;
      by_a = by_a * change + value * change_by_a, value *= change;
      off = fabs(change - 1) + fabs(change_by_a);
    }
  }
  *slope = by_a;
  return value;
}

#define LM_IGAMMA_SUMMED 1e6
/* Returns P(a, x), the distribution function of Gamma(a, 1), or with `upper` 1 - P without its rounding. Large a: the
 * first term of Temme's uniform expansion. */
LM_GAMMA double lm_incomplete_gamma(double a, double x, int upper) {
  if (a < 0 || x < 0 || (a == x && (a == 0 || a == INFINITY))) return NAN;
  if (a == 0 || x == INFINITY) return upper ? 0 : 1;
  if (x == 0 || a == INFINITY) return upper ? 1 : 0;
  if (a > LM_IGAMMA_SUMMED) {
    double off = (x - a) / a, half = off - log1p(off), eta = copysign(sqrt(2 * half), off);
    double next = fabs(eta) < 0.01 ? -1.0 / 3 + eta / 12 - eta * eta * 2 / 135 : 1 / off - 1 / eta;
    double corrected = exp(-a * half) / sqrt(6.28318530717958647693 * a) * next, root = eta * sqrt(0.5 * a);
    return upper ? 0.5 * erfc(root) + corrected : 0.5 * erfc(-root) - corrected;
  }
  double slope, factor = lm_igamma_factor(a, x, &slope), density = exp(a * log(x) - x - lm_lgamma(a + 1));
  double part = x < a + 1 ? density * factor : a * density * factor;
  return upper == (x >= a + 1) ? part : 1 - part;
}
LM_GAMMA double lm_igamma(double a, double x) { return lm_incomplete_gamma(a, x, 0); }
LM_GAMMA double lm_igammac(double a, double x) { return lm_incomplete_gamma(a, x, 1); }

/* Returns the derivative by a of the logarithm y of a quantile of Gamma(a, 1): implicit reparameterization (Figurnov,
 * Mohamed and Mnih 2018). y may be below the least logarithm of a double. Large a: the first terms of the quantile's
 * expansion (Cornish and Fisher) suffice. */
LM_GAMMA double lm_gamma_slope(double a, double y) {
  double x = exp(y), slope;
  if (!(a > 0) || y != y) return NAN;
  if (a > LM_IGAMMA_SUMMED) {
    double w = (x - a) / sqrt(a), z = w - (w * w - 1) / (3 * sqrt(a));
    return (1 + z / (2 * sqrt(a))) / x;
  }
  if (x == 0) return (lm_digamma(a + 1) - y) / a;
  double factor = lm_igamma_factor(a, x, &slope);
  return x < a + 1 ? -(factor * (y - lm_digamma(a + 1)) + slope) / a : factor * (y - lm_digamma(a)) + slope;
}
