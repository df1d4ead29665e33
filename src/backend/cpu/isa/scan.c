#include "backend/cpu/isa/scan.h"

#include "backend/cpu/isa/functions.h"

/* Lanes of a register, and shuffles that move them up by 1, 2 or 4 lanes; the first operand fills the rest. */
#if defined(__AVX512F__)
enum { LANES = 8 };
#define UP_1 0, 8, 9, 10, 11, 12, 13, 14
#define UP_2 0, 0, 8, 9, 10, 11, 12, 13
#define UP_4 0, 0, 0, 0, 8, 9, 10, 11
#define LAST 7, 7, 7, 7, 7, 7, 7, 7
#elif defined(__AVX2__)
enum { LANES = 4 };
#define UP_1 0, 4, 5, 6
#define UP_2 0, 0, 4, 5
#define UP_4 0, 0, 0, 0
#define LAST 3, 3, 3, 3
#else
enum { LANES = 2 };
#define UP_1 0, 2
#define UP_2 0, 0
#define UP_4 0, 0
#define LAST 1, 1
#endif
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Integers are added and multiplied unsigned, so that they wrap. */
#define WIDE LM_FN(WIDE)
#define WIDE_I64 uint64_t
#define WIDE_F64 double
#define VECTOR LM_FN(vector)
#define FOLDED(kind, a, b) ((kind) == LM_SCAN_SUM ? (a) + (b) : (a) * (b))

#define LM_E I64
#include "backend/cpu/isa/templates/scan.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/scan.inc"
#undef LM_E

/* ---- floating numbers only */

static inline double log_add_exp(double a, double b) {
  double min_value = a < b ? a : b, max_value = a < b ? b : a;
  double sum = max_value + log1p(exp(min_value - max_value));
  return a != a || b != b ? a + b : min_value == max_value && isinf(min_value) ? min_value : sum;
}

/* Scans a row. The largest term is subtracted in all exponents, unless the smallest sum is too small beside it. */
static void row_logsumexp(const lm_scan_part *p, int n) {
  const double most_apart = 600; /* e^-600, and e^-145 times it, are still above 0 */
  double *x = p->x, *carry = p->carry;
  LM_LARGE(double, power, LM_SCAN_TILE);
  double max_value = *carry, begin = *carry > x[0] ? *carry : x[0];
  int has_nan = *carry != *carry;
  for (int i = 0; i < n; i++) {
    max_value = x[i] > max_value ? x[i] : max_value;
    has_nan |= x[i] != x[i];
  }
  if (has_nan || isinf(max_value) || !(max_value - begin <= most_apart)) {
    double sum = *carry;
    for (int i = 0; i < n; i++) x[i] = sum = log_add_exp(sum, x[i]);
    *carry = sum;
    return;
  }
  for (int i = 0; i < n; i++) power[i] = exp(x[i] - max_value);
  double sum = exp(*carry - max_value);
  for (int i = 0; i < n; i++) power[i] = sum += power[i];
  for (int i = 0; i < n; i++) x[i] = log(power[i]) + max_value;
  *carry = x[n - 1];
}

static void cols_logsumexp(const lm_scan_part *p, int n) {
  double *x = p->x, *carry = p->carry;
  for (int j = 0; j < n; j++) x[j] = carry[j] = log_add_exp(carry[j], x[j]);
}

static void row_recurrence(const lm_scan_part *p, int n) {
  double *x = p->x, y = *(double *)p->carry;
  const double *decay = p->decay;
  for (int i = 0; i < n; i++) x[i] = y = x[i] + decay[i] * y;
  *(double *)p->carry = y;
}

static void cols_recurrence(const lm_scan_part *p, int n) {
  double *x = p->x, *carry = p->carry;
  const double *decay = p->decay;
  for (int j = 0; j < n; j++) x[j] = carry[j] = x[j] + decay[j] * carry[j];
}

static void reverse(void *x_, int n) {
  int64_t *x = x_;
  LM_INDEPENDENT for (int i = 0; i < n / 2; i++) {
    int64_t low = x[i];
    x[i] = x[n - 1 - i];
    x[n - 1 - i] = low;
  }
}

#define LOOPS(way, E)                                                                                  \
  [LM_SCAN_SUM] = way##_sum_##E, [LM_SCAN_PRODUCT] = way##_product_##E, [LM_SCAN_MAX] = way##_max_##E, \
  [LM_SCAN_MIN] = way##_min_##E
const struct lm_scan_loops LM_ISA_NAME(lm_scan_I64) = {
    .reverse = reverse, .row = {LOOPS(row, I64)}, .cols = {LOOPS(cols, I64)}};
const struct lm_scan_loops LM_ISA_NAME(lm_scan_F64) = {
    .reverse = reverse,
    .row = {LOOPS(row, F64), [LM_SCAN_LOGSUMEXP] = row_logsumexp, [LM_SCAN_RECURRENCE] = row_recurrence},
    .cols = {LOOPS(cols, F64), [LM_SCAN_LOGSUMEXP] = cols_logsumexp, [LM_SCAN_RECURRENCE] = cols_recurrence}};
