/* One compute type's elementwise loops. Included once by point_f32.c, point_f64.c and point_i64.c, which define
 *   num                the compute type
 *   LM_POINT_TABLE     the table's name
 *   LM_CLASS_FLOAT     what becomes of a row of class FLOAT: itself, or nothing
 *   LM_GRADIENTS       if the fused gradients are wanted
 *   K, EXP, …          the functions of kernels/pointwise.def */
#include <string.h>

#include "backend/cpu/isa/convert.h"
#include "backend/cpu/isa/point.h"

#define UNUSED __attribute__((unused))

/* ---- dtypes to tiles and back */

#define X(id, name, type, bytes)                                                    \
  static void load_##id(void *tile_, const void *src_, int64_t stride, int n) {     \
    num *tile = tile_;                                                              \
    const type *src = src_;                                                         \
    if (stride == 1) {                                                              \
      _Pragma("omp simd") for (int i = 0; i < n; i++) tile[i] = (num)LM_GET_##id(src[i]); \
    } else if (stride == 0) {                                                       \
      num value = (num)LM_GET_##id(src[0]);                                         \
      for (int i = 0; i < n; i++) tile[i] = value;                                  \
    } else {                                                                        \
      for (int i = 0; i < n; i++) tile[i] = (num)LM_GET_##id(src[i * stride]);      \
    }                                                                               \
  }                                                                                 \
  static void store_##id(void *dst_, int64_t stride, const void *tile_, int n) {    \
    const num *tile = tile_;                                                        \
    type *dst = dst_;                                                               \
    if (stride == 1) {                                                              \
      _Pragma("omp simd") for (int i = 0; i < n; i++) dst[i] = (type)LM_PUT_##id(tile[i]); \
    } else {                                                                        \
      for (int i = 0; i < n; i++) dst[i * stride] = (type)LM_PUT_##id(tile[i]);     \
    }                                                                               \
  }
LM_DTYPES(X)
#undef X

static void transpose(void *dst_, const void *src_, int rows, int cols) {
  num *restrict dst = dst_;
  const num *restrict src = src_;
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < cols; j++) dst[i * cols + j] = src[j * rows + i];
  }
}

/* ---- one function of scalars an op */

#define P(i) p_[i]
#define LM_CLASS_ARITH(...) __VA_ARGS__
#define LM_CLASS_TEST(...) __VA_ARGS__
#define SCALAR(name, arguments, e)                                                                            \
  static inline __attribute__((always_inline, unused)) num scalar_##name arguments { return (num)(e); }
#define UNARY(name, class, e) LM_CLASS_##class(SCALAR(name, (UNUSED const num *p_, UNUSED num x), e))
#define BINARY(name, class, e) LM_CLASS_##class(SCALAR(name, (UNUSED const num *p_, num x, num other), e))
#define TERNARY(name, class, e) LM_CLASS_##class(SCALAR(name, (UNUSED const num *p_, num a, num b, num c), e))
#include "pointwise.def"
#undef UNARY
#undef BINARY
#undef TERNARY

/* ---- forward loops. The numbers are copied so that they stay in registers; elements depend on no others, even
 * where out is one of the inputs, which is what `omp simd` asserts. */

#define LOOP(name, call)                                                                               \
  static void point_##name(void *out_, const void *const *in_, const void *numbers_, int64_t n) {      \
    num p_[LM_POINT_MAX_NUMBERS];                                                                      \
    memcpy(p_, numbers_, sizeof p_);                                                                   \
    num *out = out_;                                                                                   \
    n &= -(int64_t)LM_LANES;                                                                           \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = scalar_##name call;                   \
  }
#define IN(k) ((const num *)in_[k])[i]
#define UNARY(name, class, e) LM_CLASS_##class(LOOP(name, (p_, IN(0))))
#define BINARY(name, class, e) LM_CLASS_##class(LOOP(name, (p_, IN(0), IN(1))))
#define TERNARY(name, class, e) LM_CLASS_##class(LOOP(name, (p_, IN(0), IN(1), IN(2))))
#include "pointwise.def"
#undef UNARY
#undef BINARY
#undef TERNARY
#undef LOOP
#undef IN

/* ---- fused gradients: the formula's op names become the functions above, with default numbers */

#ifdef LM_GRADIENTS

#define DEFAULTS_POINT(name, ...) \
  static const num defaults_##name[LM_POINT_MAX_NUMBERS + 1] UNUSED = {__VA_ARGS__ 0};
#define DEFAULTS_VIEW(name, ...)
#define DEFAULTS_PRIM(name, ...)
#define DEFAULTS_WRITE(name, ...)
#define DEFAULTS_NEW(name, ...)
#define DEFAULTS_COMP(name, ...)
#define T(f)
#define S(f)
#define F(f, d) d,
#define OP(name, kind, outs, aux, args, opts, cast, help) DEFAULTS_##kind(name, args opts)
#include "op/op.def"
#undef OP
#undef T
#undef S
#undef F

#include "op_names.h"
#define LM_NAMED(name, ...) scalar_##name(defaults_##name, __VA_ARGS__)

#define POINTER(name, place) const num *name##_ = in_[place];
#define ELEMENT(name, place)   \
  const num name = name##_[i_]; \
  (void)name;
#define POINT(op, in, formula)                                                                              \
  static void grad_##op##_##in(void *out_, const void *const *in_, const void *numbers_, int64_t n_) {      \
    num p_[LM_POINT_MAX_NUMBERS];                                                                           \
    memcpy(p_, numbers_, sizeof p_);                                                                        \
    num *result_ = out_;                                                                                    \
    LM_TENSORS_##op(POINTER) POINTER(g, 0) POINTER(y, LM_POINT_Y) n_ &= -(int64_t)LM_LANES;                 \
    _Pragma("omp simd") for (int64_t i_ = 0; i_ < n_; i_++) {                                               \
      LM_TENSORS_##op(ELEMENT) ELEMENT(g, 0) ELEMENT(y, LM_POINT_Y) result_[i_] = (num)(formula);           \
    }                                                                                                       \
  }
#define RULE(op, in, formula)
#define JOINT(op, formula, ...)
#define EACH(op, in, formula)
#define NONE(op)
#define DECOMPOSE(op)
#include "op/rules.def"
#undef POINT

#endif

const struct lm_point_loops LM_ISA_NAME(LM_POINT_TABLE) = {
#define X(id, name, type, bytes) [LM_##id] = load_##id,
    .load = {LM_DTYPES(X)},
#undef X
#define X(id, name, type, bytes) [LM_##id] = store_##id,
    .store = {LM_DTYPES(X)},
#undef X
    .transpose = transpose,
    .kernel = {
#define ROW(name) [LM_OP_##name] = point_##name,
#define UNARY(name, class, e) LM_CLASS_##class(ROW(name))
#define BINARY UNARY
#define TERNARY UNARY
#include "pointwise.def"
#ifdef LM_GRADIENTS
#define POINT(op, in, formula) [LM_GRAD_##op##_##in] = grad_##op##_##in,
#include "op/rules.def"
#endif
    }};
