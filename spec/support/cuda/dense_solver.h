/* Computes for the fakes of cuSOLVER and cuBLAS, by plain loops in double: column-major, as LAPACK's of those names. */
#ifndef LM_FAKE_DENSE_SOLVER_H
#define LM_FAKE_DENSE_SOLVER_H

#include <math.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

struct lm_dense {
  int rows, columns;
  std::vector<double> v;
  lm_dense(int m, int n) : rows(m), columns(n), v((size_t)m * (size_t)n) {}
  template <class T>
  lm_dense(int m, int n, const T *from, int ld) : lm_dense(m, n) {
    for (int c = 0; c < n; c++)
      for (int r = 0; r < m; r++) at(r, c) = (double)from[r + (long)c * ld];
  }
  double &at(int r, int c) { return v[(size_t)r + (size_t)c * (size_t)rows]; }
  template <class T>
  void put(T *to, int ld) {
    for (int c = 0; c < columns; c++)
      for (int r = 0; r < rows; r++) to[r + (long)c * ld] = (T)at(r, c);
  }
};

static inline int lm_dense_getrf(lm_dense &a, int *pivots) {
  int info = 0;
  for (int d = 0; d < std::min(a.rows, a.columns); d++) {
    int best = d;
    for (int r = d + 1; r < a.rows; r++)
      if (fabs(a.at(r, d)) > fabs(a.at(best, d))) best = r;
    pivots[d] = best + 1;
    for (int c = 0; c < a.columns; c++) std::swap(a.at(d, c), a.at(best, c));
    if (a.at(d, d) == 0) {
      if (info == 0) info = d + 1;
      continue;
    }
    for (int r = d + 1; r < a.rows; r++) {
      a.at(r, d) /= a.at(d, d);
      for (int c = d + 1; c < a.columns; c++) a.at(r, c) -= a.at(r, d) * a.at(d, c);
    }
  }
  return info;
}

/* Replaces b by x of op(triangle of a) x = b. */
static inline void lm_dense_trsm(lm_dense &a, bool upper, bool transposed, bool ones, lm_dense &b) {
  int n = a.columns;
  bool down = upper == transposed;
  for (int c = 0; c < b.columns; c++) {
    for (int i = 0; i < n; i++) {
      int r = down ? i : n - 1 - i;
      double sum = b.at(r, c);
      for (int j = 0; j < i; j++) {
        int k = down ? j : n - 1 - j;
        sum -= (transposed ? a.at(k, r) : a.at(r, k)) * b.at(k, c);
      }
      b.at(r, c) = ones ? sum : sum / a.at(r, r);
    }
  }
}

static inline void lm_dense_swap_rows(lm_dense &b, const int *pivots, int n, bool backwards) {
  for (int i = 0; i < n; i++) {
    int r = backwards ? n - 1 - i : i;
    for (int c = 0; c < b.columns; c++) std::swap(b.at(r, c), b.at(pivots[r] - 1, c));
  }
}

static inline void lm_dense_getrs(lm_dense &lu, const int *pivots, bool transposed, lm_dense &b) {
  if (!transposed) lm_dense_swap_rows(b, pivots, lu.columns, false);
  lm_dense_trsm(lu, transposed, transposed, !transposed, b);
  lm_dense_trsm(lu, !transposed, transposed, transposed, b);
  if (transposed) lm_dense_swap_rows(b, pivots, lu.columns, true);
}

/* Factors a; reads and writes one triangle, and leaves the other. */
static inline int lm_dense_potrf(lm_dense &a, bool upper) {
  auto at = [&](int r, int c) -> double & { return upper ? a.at(c, r) : a.at(r, c); };
  for (int d = 0; d < a.columns; d++) {
    double sum = at(d, d);
    for (int k = 0; k < d; k++) sum -= at(d, k) * at(d, k);
    if (!(sum > 0)) return d + 1;
    at(d, d) = sqrt(sum);
    for (int r = d + 1; r < a.columns; r++) {
      double s = at(r, d);
      for (int k = 0; k < d; k++) s -= at(r, k) * at(d, k);
      at(r, d) = s / at(d, d);
    }
  }
  return 0;
}

/* Applies (I - tau v v^T) to b, with v = (1, rest of column d of a). */
static inline void lm_dense_reflect(lm_dense &a, int d, double tau, lm_dense &b, int from) {
  for (int c = from; c < b.columns; c++) {
    double sum = b.at(d, c);
    for (int r = d + 1; r < a.rows; r++) sum += a.at(r, d) * b.at(r, c);
    b.at(d, c) -= tau * sum;
    for (int r = d + 1; r < a.rows; r++) b.at(r, c) -= tau * sum * a.at(r, d);
  }
}

static inline void lm_dense_geqrf(lm_dense &a, double *tau) {
  for (int d = 0; d < std::min(a.rows, a.columns); d++) {
    double rest = 0, alpha = a.at(d, d);
    for (int r = d + 1; r < a.rows; r++) rest += a.at(r, d) * a.at(r, d);
    tau[d] = 0;
    if (rest == 0) continue;
    double beta = alpha > 0 ? -sqrt(alpha * alpha + rest) : sqrt(alpha * alpha + rest);
    tau[d] = (beta - alpha) / beta;
    for (int r = d + 1; r < a.rows; r++) a.at(r, d) /= alpha - beta;
    a.at(d, d) = beta;
    lm_dense_reflect(a, d, tau[d], a, d + 1);
  }
}

static inline void lm_dense_orgqr(lm_dense &a, const double *tau, int k) {
  lm_dense q(a.rows, a.columns);
  for (int d = 0; d < a.columns; d++) q.at(d, d) = 1;
  for (int d = k - 1; d >= 0; d--) lm_dense_reflect(a, d, tau[d], q, 0);
  a = q;
}

/* Computes eigenvalues, ascending, and the vectors in the columns of a, symmetric, by Jacobi's rotations. */
static inline void lm_dense_syev(lm_dense &a, double *w) {
  int n = a.columns;
  lm_dense v(n, n), sorted(n, n);
  for (int d = 0; d < n; d++) v.at(d, d) = 1;
  for (int sweep = 0; sweep < 60; sweep++) {
    double off = 0;
    for (int p = 0; p < n; p++) {
      for (int q = p + 1; q < n; q++) {
        if (a.at(p, q) == 0) continue;
        off += a.at(p, q) * a.at(p, q);
        double theta = (a.at(q, q) - a.at(p, p)) / (2 * a.at(p, q));
        double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1), s = t * c;
        for (int k = 0; k < n; k++) {
          double x = a.at(k, p), y = a.at(k, q);
          a.at(k, p) = c * x - s * y, a.at(k, q) = s * x + c * y;
        }
        for (int k = 0; k < n; k++) {
          double x = a.at(p, k), y = a.at(q, k);
          a.at(p, k) = c * x - s * y, a.at(q, k) = s * x + c * y;
        }
        for (int k = 0; k < n; k++) {
          double x = v.at(k, p), y = v.at(k, q);
          v.at(k, p) = c * x - s * y, v.at(k, q) = s * x + c * y;
        }
      }
    }
    if (off < 1e-300) break;
  }
  std::vector<int> order((size_t)n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int x, int y) { return a.at(x, x) < a.at(y, y); });
  for (int d = 0; d < n; d++) {
    w[d] = a.at(order[(size_t)d], order[(size_t)d]);
    for (int r = 0; r < n; r++) sorted.at(r, d) = v.at(r, order[(size_t)d]);
  }
  a = sorted;
}

/* Makes column d of u orthonormal to those before it; one that lies among them becomes any other. */
static inline void lm_dense_orthonormal(lm_dense &u, int d) {
  for (int unit = -1; unit < u.rows; unit++) {
    for (int r = 0; r < u.rows && unit >= 0; r++) u.at(r, d) = r == unit;
    double before = 0, norm = 0;
    for (int r = 0; r < u.rows; r++) before += u.at(r, d) * u.at(r, d);
    for (int again = 0; again < 2; again++) {
      for (int c = 0; c < d; c++) {
        double sum = 0;
        for (int r = 0; r < u.rows; r++) sum += u.at(r, c) * u.at(r, d);
        for (int r = 0; r < u.rows; r++) u.at(r, d) -= sum * u.at(r, c);
      }
    }
    for (int r = 0; r < u.rows; r++) norm += u.at(r, d) * u.at(r, d);
    if (!(norm > 1e-6 * before) || before == 0) continue;
    for (int r = 0; r < u.rows; r++) u.at(r, d) /= sqrt(norm);
    return;
  }
}

/* Computes U (of as many columns as u has), s descending and V of a, by one-sided rotations of its columns. */
static inline void lm_dense_gesvd(lm_dense a, double *s, lm_dense &u, lm_dense &v) {
  if (a.rows < a.columns) {
    lm_dense transposed(a.columns, a.rows);
    for (int c = 0; c < a.columns; c++)
      for (int r = 0; r < a.rows; r++) transposed.at(c, r) = a.at(r, c);
    return lm_dense_gesvd(transposed, s, v, u);
  }
  int m = a.rows, n = a.columns;
  lm_dense w(n, n);
  for (int d = 0; d < n; d++) w.at(d, d) = 1;
  for (int sweep = 0; sweep < 60; sweep++) {
    bool transposed = false;
    for (int p = 0; p < n; p++) {
      for (int q = p + 1; q < n; q++) {
        double pp = 0, qq = 0, pq = 0;
        for (int r = 0; r < m; r++) {
          pp += a.at(r, p) * a.at(r, p), qq += a.at(r, q) * a.at(r, q), pq += a.at(r, p) * a.at(r, q);
        }
        if (fabs(pq) <= 1e-16 * sqrt(pp * qq) || pq == 0) continue;
        transposed = true;
        double theta = (qq - pp) / (2 * pq), t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        double c = 1 / sqrt(t * t + 1), sine = t * c;
        for (int r = 0; r < m + n; r++) {
          double &x = r < m ? a.at(r, p) : w.at(r - m, p), &y = r < m ? a.at(r, q) : w.at(r - m, q), kept = x;
          x = c * x - sine * y, y = sine * kept + c * y;
        }
      }
    }
    if (!transposed) break;
  }
  std::vector<std::pair<double, int>> order;
  for (int d = 0; d < n; d++) {
    double sum = 0;
    for (int r = 0; r < m; r++) sum += a.at(r, d) * a.at(r, d);
    order.push_back({-sqrt(sum), d});
  }
  std::sort(order.begin(), order.end());
  for (int d = 0; d < u.columns; d++) {
    int from = d < n ? order[(size_t)d].second : -1;
    if (d < n) s[d] = -order[(size_t)d].first;
    for (int r = 0; r < m; r++) u.at(r, d) = from < 0 || s[d] < 1e-14 * s[0] ? 0 : a.at(r, from);
    lm_dense_orthonormal(u, d);
  }
  for (int d = 0; d < v.columns; d++)
    for (int r = 0; r < n; r++) v.at(r, d) = w.at(r, order[(size_t)d].second);
}

#endif
