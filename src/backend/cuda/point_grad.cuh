/* The POINT rows of op/rules.def as rows of kernels/point.cuh: a formula's op names become the rows of pointwise.def,
 * with their default numbers. Included once a file, last. */
#ifndef LM_CUDA_POINT_GRAD_CUH
#define LM_CUDA_POINT_GRAD_CUH

#include "backend/cuda/point_grad.h"
#include "point.cuh"

/* ---- numbers that a formula does not give */

#define DEFAULTS_POINT(name, ...)                  \
  template <class num>                             \
  LM_DEVICE lm_numbers<num> lm_defaults_##name() { \
    return lm_numbers<num>{{__VA_ARGS__}};         \
  }
#define DEFAULTS_VIEW(name, ...)
#define DEFAULTS_PRIM(name, ...)
#define DEFAULTS_WRITE(name, ...)
#define DEFAULTS_NEW(name, ...)
#define DEFAULTS_COMP(name, ...)
#define T(f)
#define S(f)
#define S_OPT(f)
#define I(f, d)
#define E(f, names, d)
#define F(f, d) (num)(d),
#define F_REQ(f) 0,
#define OP(name, kind, outs, aux, args, opts, cast, help) DEFAULTS_##kind(name, args opts)
#include "op/op.def"
#undef OP
#undef T
#undef S
#undef S_OPT
#undef I
#undef E
#undef F_REQ
#undef F

/* ---- which tensors a formula reads: op/pointwise.h's bits, found by evaluating it on them */

enum { LM_BIT_Y = 7 }; /* op/pointwise.h: LM_POINT_Y */

struct lm_bits {
  unsigned of;
};
constexpr unsigned lm_bits_of(lm_bits b) { return b.of; }
constexpr unsigned lm_bits_of(double) { return 0; }
template <class... A>
constexpr lm_bits lm_bits_join(A... a) {
  return lm_bits{(lm_bits_of(a) | ... | 0u)};
}
constexpr int lm_bits_count(unsigned bits) { return bits ? (int)(bits & 1) + lm_bits_count(bits >> 1) : 0; }

template <class Row, class num, class... A>
LM_DEVICE num lm_apply(const lm_numbers<num> &numbers, A... a) {
  const num in[] = {(num)a...};
  return Row::of(in, numbers);
}

/* The input in a place; any other where the formula does not read it. */
template <unsigned bits, int place, class num>
LM_DEVICE num lm_in_place(const num *in) {
  return in[bits >> place & 1 ? lm_bits_count(bits & ((1u << place) - 1)) : 0];
}

#include "op_names.h"

#undef P
#define P(i) 0
#define LM_NAMED(name, ...) lm_bits_join(__VA_ARGS__)
#define BITS(name, place)                   \
  constexpr lm_bits name = {1u << (place)}; \
  (void)name;
#define POINT(op, in, formula)                                                     \
  constexpr unsigned lm_bits_##op##_##in() {                                       \
    LM_TENSORS_##op(BITS) BITS(g, 0) BITS(y, LM_BIT_Y) return lm_bits_of(formula); \
  }
#include "op/point_rows.def"
#undef LM_NAMED
#undef P

/* ---- the rows */

#define P(i) p_.of[i]
#define LM_NAMED(name, ...) lm_apply<lm_row_##name<num>>(lm_defaults_##name<num>(), __VA_ARGS__)
#define ELEMENT(name, place)                             \
  const num name = lm_in_place<BITS_READ, (place)>(in_); \
  (void)name;
#define POINT(op, in, formula)                                                                                 \
  template <class num>                                                                                         \
  struct lm_row_grad_##op##_##in {                                                                             \
    enum : unsigned { BITS_READ = lm_bits_##op##_##in(), NIN = (unsigned)lm_bits_count(BITS_READ), TEST = 0 }; \
    static LM_DEVICE num of(const num *in_, const lm_numbers<num> &p_) {                                       \
      (void)p_;                                                                                                \
      LM_TENSORS_##op(ELEMENT) ELEMENT(g, 0) ELEMENT(y, LM_BIT_Y) return (num)(formula);                       \
    }                                                                                                          \
  };
#include "op/point_rows.def"

#endif
