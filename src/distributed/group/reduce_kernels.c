/* Computes the reductions of backends that run on the CPU: elementwise sum, product, min, max, and, or, and scaling.
 *
 * Each loop is compiled twice, for the baseline and for AVX2; wider vectors would not help, since memory is the limit.
 * `omp simd` declares iterations independent, which holds in place as well. */
#include <stddef.h>

#include "convert.h"
#include "distributed/group/backend.h"

typedef void reduce_fn(void *out, const void *a, const void *b, size_t n);
typedef void scale_fn(void *x, size_t n, double factor);

/* Formulas for two elements. A bool is a truth value (sum is or, product is and). min and max propagate NaN. */
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

#define LOOP(level, target, dtype, stored, number, op, formula)                                  \
  target static void op##_##dtype##_##level(void *out, const void *a, const void *b, size_t n) { \
    stored *o = out;                                                                             \
    const stored *pa = a, *pb = b;                                                               \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) {                                         \
      number x = LM_GET_##dtype(pa[i]), y = LM_GET_##dtype(pb[i]);                               \
      o[i] = LM_PUT_##dtype(formula(x, y));                                                      \
    }                                                                                            \
  }

#define LOOPS(level, target, dtype, stored, number)            \
  LOOP(level, target, dtype, stored, number, sum, SUM)         \
  LOOP(level, target, dtype, stored, number, product, PRODUCT) \
  LOOP(level, target, dtype, stored, number, min, MIN)         \
  LOOP(level, target, dtype, stored, number, max, MAX)

#define BIT_LOOPS(level, target, dtype, stored, number) \
  LOOP(level, target, dtype, stored, number, band, AND) \
  LOOP(level, target, dtype, stored, number, bor, OR)

#define INTEGER_LOOPS(id, name, type, low, high, level, target) \
  LOOPS(level, target, id, type, type)                          \
  BIT_LOOPS(level, target, id, type, type)

#define SCALE(level, target, dtype, stored, number, wide)                                                         \
  target static void scale_##dtype##_##level(void *x, size_t n, double factor) {                                  \
    stored *p = x;                                                                                                \
    wide f = (wide)factor;                                                                                        \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++) p[i] = LM_PUT_##dtype((number)(LM_GET_##dtype(p[i]) * f)); \
  }

/* float32 is scaled in double, so that multiplying by 1/3 nearly always equals dividing by 3. */
#define LEVEL(level, target)                                                                     \
  BIT_LOOPS(level, target, BOOL, uint8_t, uint8_t)                                               \
  LM_INTEGER_DTYPES(INTEGER_LOOPS, level, target)                                                \
  LOOPS(level, target, F16, uint16_t, float)                                                     \
  LOOPS(level, target, BF16, uint16_t, float)                                                    \
  LOOPS(level, target, F32, float, float)                                                        \
  LOOPS(level, target, F64, double, double)                                                      \
  SCALE(level, target, F16, uint16_t, float, float)                                              \
  SCALE(level, target, BF16, uint16_t, float, float)                                             \
  SCALE(level, target, F32, float, float, double)                                                \
  SCALE(level, target, F64, double, double, double)                                              \
  static scale_fn *const scale_##level[LM_DTYPE_COUNT] = {LM_FLOAT_DTYPES(ENTRY, scale, level)}; \
  static reduce_fn *const reduce_##level[LM_REDUCE_OPS][LM_DTYPE_COUNT] = {                      \
      [LM_REDUCE_SUM] = ROW(sum, bor, level),                                                    \
      [LM_REDUCE_MEAN] = ROW(sum, bor, level),                                                   \
      [LM_REDUCE_PRODUCT] = ROW(product, band, level),                                           \
      [LM_REDUCE_MIN] = ROW(min, band, level),                                                   \
      [LM_REDUCE_MAX] = ROW(max, bor, level),                                                    \
      [LM_REDUCE_BAND] = BITS(band, level),                                                      \
      [LM_REDUCE_BOR] = BITS(bor, level)};

#define ENTRY(id, name, type, low, high, op, level) [LM_##id] = op##_##id##_##level,
#define ROW(op, truth, level) \
  { [LM_BOOL] = truth##_BOOL_##level, LM_INTEGER_DTYPES(ENTRY, op, level) LM_FLOAT_DTYPES(ENTRY, op, level) }
#define BITS(op, level) \
  { [LM_BOOL] = op##_BOOL_##level, LM_INTEGER_DTYPES(ENTRY, op, level) }

LEVEL(least, )
#if defined(__x86_64__)
LEVEL(avx2, __attribute__((target("avx2"))))

static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
#define has_avx2() false
#define reduce_avx2 reduce_least
#define scale_avx2 scale_least
#endif

void lm_reduce_into(lm_dtype dtype, lm_reduce_op op, void *out, const void *a, const void *b, size_t n) {
  (has_avx2() ? reduce_avx2 : reduce_least)[op][dtype](out, a, b, n);
}

void lm_reduce_scale(lm_dtype dtype, void *x, size_t n, double factor) {
  (has_avx2() ? scale_avx2 : scale_least)[dtype](x, n, factor);
}

void lm_reduce_mean(const lm_group *g, lm_tensor *t, lm_reduce_op op) {
  if (op == LM_REDUCE_MEAN) lm_reduce_scale(t->dtype, t->data, (size_t)t->numel, 1.0 / g->size);
}
