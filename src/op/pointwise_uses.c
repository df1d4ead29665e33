/* What each fused gradient reads, from the formula itself: every name in it stands for its bit, every op for
 * the bits of its arguments, and numbers for none. */
#include "op/pointwise.h"

typedef unsigned long long bits; /* a type that no number in a formula has */

#define BITS(e) _Generic((e), bits : (e), default : (bits)0)
#define BITS_OF(a, b, c, d, e, f, ...) (BITS(a) | BITS(b) | BITS(c) | BITS(d) | BITS(e) | BITS(f))
#define LM_NAMED(name, ...) BITS_OF(__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define P(i) 0
#define ARGUMENT(name, place)           \
  const bits name = (bits)1 << (place); \
  (void)name;

#include "op_names.h"

unsigned lm_point_uses(int kernel) {
  const bits g = 1, y = (bits)1 << LM_POINT_Y;
  (void)g, (void)y;
  switch (kernel) {
#define POINT(op, in, formula)                                \
  case LM_GRAD_##op##_##in: {                                 \
    LM_TENSORS_##op(ARGUMENT) return (unsigned)BITS(formula); \
  }
#include "op/point_rows.def"
    default: return 0;
  }
}
