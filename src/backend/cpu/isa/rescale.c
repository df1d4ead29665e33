#include "backend/cpu/isa/rescale.h"

#include "backend/cpu/isa/elem.h"

/* REAL: what is computed in. A value that is not finite gives NaN, and so something else than 0, less itself. */
#define RESCALE(X, Y, REAL)                                                            \
  static bool rescale_##X##_##Y(int64_t n, const void *x_, void *y_, double factor_) { \
    const lm_elem_##X *x = x_;                                                         \
    lm_elem_##Y *y = y_;                                                               \
    REAL factor = (REAL)factor_;                                                       \
    int bad = 0;                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                  \
      lm_acc_##X v = lm_load_##X(x[i]);                                                \
      bad |= !(v - v == 0);                                                            \
      y[i] = lm_store_##Y((lm_acc_##Y)((REAL)v * factor));                             \
    }                                                                                  \
    return bad;                                                                        \
  }
#define FROM(X, REAL)    \
  RESCALE(X, F16, REAL)  \
  RESCALE(X, BF16, REAL) \
  RESCALE(X, F32, REAL)  \
  RESCALE(X, F64, double)
FROM(F16, float)
FROM(BF16, float)
FROM(F32, float)
FROM(F64, double)

#define BY_RESULT(X)                                                                            \
  {                                                                                             \
    [LM_F16] = rescale_##X##_F16, [LM_BF16] = rescale_##X##_BF16, [LM_F32] = rescale_##X##_F32, \
    [LM_F64] = rescale_##X##_F64                                                                \
  }

const struct lm_rescale_loops LM_ISA_NAME(lm_rescale_loops) = {
    {[LM_F16] = BY_RESULT(F16), [LM_BF16] = BY_RESULT(BF16), [LM_F32] = BY_RESULT(F32), [LM_F64] = BY_RESULT(F64)}};
