/* Computes products of Householder matrices, H1 H2 ... Hk with Hi = 1 - tau_i v_i v_i^T: v_i has a 1 at i, zeros above
 * it, and the column i of x below it. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "op_args_linalg.h"

/* Computes the first n columns, from the last factor on: before Hi the columns up to i are those of the identity. */
#define ORGQR(T)                                                                           \
  static void orgqr_##T(const T *x, const T *tau, int64_t m, int64_t n, int64_t k, T *q) { \
    memset(q, 0, (size_t)(m * n) * sizeof *q);                                             \
    for (int64_t i = 0; i < n; i++) q[i * n + i] = 1;                                      \
    for (int64_t i = k - 1; i >= 0; i--) {                                                 \
      for (int64_t c = i; c < n; c++) {                                                    \
        T dot = q[i * n + c];                                                              \
        for (int64_t r = i + 1; r < m; r++) dot += x[r * n + i] * q[r * n + c];            \
        dot *= tau[i];                                                                     \
        q[i * n + c] -= dot;                                                               \
        for (int64_t r = i + 1; r < m; r++) q[r * n + c] -= dot * x[r * n + i];            \
      }                                                                                    \
    }                                                                                      \
  }
ORGQR(float)
ORGQR(double)

lm_status lm_cpu_orgqr(const lm_orgqr_args *a, lm_tensor *const *out) {
  const int64_t m = a->x->size[a->x->ndim - 2], n = a->x->size[a->x->ndim - 1], k = a->tau->size[a->tau->ndim - 1];
  const int64_t matrices = out[0]->numel / (m * n);
  for (int64_t i = 0; i < matrices; i++) {
    if (out[0]->dtype == LM_F64) {
      orgqr_double((const double *)a->x->data + i * m * n, (const double *)a->tau->data + i * k, m, n, k,
                   (double *)out[0]->data + i * m * n);
    } else {
      orgqr_float((const float *)a->x->data + i * m * n, (const float *)a->tau->data + i * k, m, n, k,
                  (float *)out[0]->data + i * m * n);
    }
  }
  return LM_OK;
}
