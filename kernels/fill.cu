#include "fill.h"

#include "philox.h"
#include "strided.cuh"

/* ---- sources: each computes four elements, from an index that is a multiple of 4. fma is explicit where the CPU's
 * compiler fuses the same sums, so that results agree to the bit. */

struct lm_arange_source {
  typedef double num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, double *out) {
    LM_UNROLL
    for (int j = 0; j < 4; j++) out[j] = fma((double)(i + j), s.b, s.a);
  }
};

struct lm_arange_whole_source {
  typedef int64_t num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, int64_t *out) {
    LM_UNROLL
    for (int j = 0; j < 4; j++) out[j] = s.from + (i + j) * s.to;
  }
};

/* Counts the second half from the end, so that the last element is exactly `stop`. */
struct lm_linspace_source {
  typedef double num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, double *out) {
    LM_UNROLL
    for (int j = 0; j < 4; j++, i++) {
      out[j] = i < s.to / 2 ? fma(s.b, (double)i, s.a) : fma(-s.b, (double)(s.to - 1 - i), s.stop);
    }
  }
};

/* Defines a source that draws `bits` for each element: `value` is an expression of `bits`, a, b (the op's numbers). */
#define LM_SOURCE_F32(name, value)                                               \
  struct name {                                                                  \
    typedef float num;                                                           \
    static LM_DEVICE void four(const lm_fill_source &s, int64_t i, float *out) { \
      [[maybe_unused]] float a = (float)s.a, b = (float)s.b;                     \
      lm_philox_block block = lm_block_of(&s.draw, i / 4);                       \
      LM_UNROLL                                                                  \
      for (int j = 0; j < 4; j++) {                                              \
        uint32_t bits = block.word[j] & s.keep;                                  \
        out[j] = value;                                                          \
      }                                                                          \
    }                                                                            \
  };
#define LM_SOURCE_F64(name, value)                                                \
  struct name {                                                                   \
    typedef double num;                                                           \
    static LM_DEVICE void four(const lm_fill_source &s, int64_t i, double *out) { \
      [[maybe_unused]] double a = s.a, b = s.b;                                   \
      LM_UNROLL                                                                   \
      for (int j = 0; j < 4; j += 2) {                                            \
        lm_philox_block block = lm_block_of(&s.draw, (i + j) / 2);                \
        LM_UNROLL                                                                 \
        for (int half = 0; half < 2; half++) {                                    \
          uint64_t bits = lm_philox_u64(block, half);                             \
          out[j + half] = value;                                                  \
        }                                                                         \
      }                                                                           \
    }                                                                             \
  };
LM_SOURCE_F32(lm_uniform_f32_source, lm_between_f32(bits, a, b))
LM_SOURCE_F64(lm_uniform_f64_source, lm_between_f64(bits, a, b))
LM_SOURCE_F32(lm_exponential_f32_source, lm_exponential_f32(bits, a))
LM_SOURCE_F64(lm_exponential_f64_source, lm_exponential_f64(bits, a))
LM_SOURCE_F32(lm_cauchy_f32_source, lm_cauchy_f32(bits, a, b))
LM_SOURCE_F64(lm_cauchy_f64_source, lm_cauchy_f64(bits, a, b))
LM_SOURCE_F64(lm_geometric_source, lm_geometric(bits, a))
LM_SOURCE_F32(lm_bernoulli_source, lm_uniform_f32(bits) < a ? 1.0f : 0.0f)

struct lm_normal_f32_source {
  typedef float num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, float *out) {
    float mean = (float)s.a, deviation = (float)s.b;
    lm_philox_block block = lm_block_of(&s.draw, i / 4);
    LM_UNROLL
    for (int j = 0; j < 4; j += 2) {
      float pair[2];
      lm_normal_f32(block.word[j], block.word[j + 1], pair);
      out[j] = fmaf(deviation, pair[0], mean), out[j + 1] = fmaf(deviation, pair[1], mean);
    }
  }
};

struct lm_normal_f64_source {
  typedef double num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, double *out) {
    LM_UNROLL
    for (int j = 0; j < 4; j += 2) {
      double pair[2];
      lm_philox_block block = lm_block_of(&s.draw, (i + j) / 2);
      lm_normal_f64(lm_philox_u64(block, 0), lm_philox_u64(block, 1), pair);
      out[j] = fma(s.b, pair[0], s.a), out[j + 1] = fma(s.b, pair[1], s.a);
    }
  }
};

/* The exponential of another source's numbers. */
template <class Source>
struct lm_exp_source {
  typedef typename Source::num num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, num *out) {
    Source::four(s, i, out);
    LM_UNROLL
    for (int j = 0; j < 4; j++) out[j] = exp(out[j]);
  }
};

struct lm_integers_source {
  typedef int64_t num;
  static LM_DEVICE void four(const lm_fill_source &s, int64_t i, int64_t *out) {
    uint64_t range = (uint64_t)s.to - (uint64_t)s.from;
    LM_UNROLL
    for (int j = 0; j < 4; j += 2) {
      lm_philox_block block = lm_block_of(&s.draw, (i + j) / 2);
      LM_UNROLL
      for (int half = 0; half < 2; half++) {
        out[j + half] = (int64_t)((uint64_t)s.from + lm_uniform_below(lm_philox_u64(block, half), range));
      }
    }
  }
};

/* ---- writing them */

enum { LM_FILL_BLOCK = 256 };

template <class Source>
LM_KERNEL void __launch_bounds__(LM_FILL_BLOCK)
    lm_fill_kernel(const lm_fill_source s, const lm_strided<1> walk, int64_t first) {
  uint32_t i = (blockIdx.x * LM_FILL_BLOCK + threadIdx.x) * LM_GROUP;
  if (i >= walk.n) return;
  int count = walk.n - i < LM_GROUP ? (int)(walk.n - i) : LM_GROUP;
  int64_t at[1][LM_GROUP];
  typename Source::num value[LM_GROUP];
  lm_strided_indices<1>(walk, i, at);
  Source::four(s, first + i, value);
  lm_store(walk, 0, at[0], value, count);
}

template <class Source>
static int lm_fill_run(const lm_fill_source *s, const lm_strided_layout *at, int64_t first, void *stream) {
  lm_strided<1> walk = lm_strided_of<1>(at);
  return lm_launch(lm_fill_kernel<Source>, lm_blocks(walk.n, LM_FILL_BLOCK * LM_GROUP, INT32_MAX), LM_FILL_BLOCK, 0,
                   stream, *s, walk, first);
}

/* Runs Wide for float64, which draws its own numbers from 64 bits, and Narrow for other dtypes. */
template <class Narrow, class Wide>
static int lm_fill_floats(const lm_fill_source *s, const lm_strided_layout *at, int64_t first, void *stream) {
  return at->dtype[0] == LM_F64 ? lm_fill_run<Wide>(s, at, first, stream) : lm_fill_run<Narrow>(s, at, first, stream);
}

int lm_fill_from(const lm_fill_source *s, const lm_strided_layout *at, int64_t first, void *stream) {
  switch (s->kind) {
    case LM_ARANGE: return lm_fill_run<lm_arange_source>(s, at, first, stream);
    case LM_ARANGE_WHOLE: return lm_fill_run<lm_arange_whole_source>(s, at, first, stream);
    case LM_LINSPACE: return lm_fill_run<lm_linspace_source>(s, at, first, stream);
    case LM_UNIFORM: return lm_fill_floats<lm_uniform_f32_source, lm_uniform_f64_source>(s, at, first, stream);
    case LM_NORMAL: return lm_fill_floats<lm_normal_f32_source, lm_normal_f64_source>(s, at, first, stream);
    case LM_LOG_NORMAL:
      return lm_fill_floats<lm_exp_source<lm_normal_f32_source>, lm_exp_source<lm_normal_f64_source>>(s, at, first,
                                                                                                      stream);
    case LM_EXPONENTIAL:
      return lm_fill_floats<lm_exponential_f32_source, lm_exponential_f64_source>(s, at, first, stream);
    case LM_CAUCHY: return lm_fill_floats<lm_cauchy_f32_source, lm_cauchy_f64_source>(s, at, first, stream);
    case LM_GEOMETRIC: return lm_fill_run<lm_geometric_source>(s, at, first, stream);
    case LM_BERNOULLI: return lm_fill_run<lm_bernoulli_source>(s, at, first, stream);
    case LM_INTEGERS: return lm_fill_run<lm_integers_source>(s, at, first, stream);
    default: return (int)cudaErrorInvalidValue;
  }
}

/* ---- dropout */

template <class T>
LM_KERNEL void __launch_bounds__(LM_FILL_BLOCK)
    lm_dropout_kernel(const T *x, T *y, uint8_t *keep, int64_t n, lm_blocks_drawn draw, uint32_t threshold,
                      double scale_, bool aligned) {
  lm_compute<T> scale = (lm_compute<T>)scale_;
  int64_t i = lm_thread() * LM_GROUP;
  if (i >= n) return;
  bool together = aligned && n - i >= LM_GROUP;
  lm_pack<T, LM_GROUP> in = {}, out;
  lm_pack<uint8_t, LM_GROUP> kept;
  if (together) {
    in = lm_load<LM_GROUP>(x + i);
  } else {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) {
      if (i + j < n) in.v[j] = x[i + j];
    }
  }
  lm_philox_block block = lm_block_of(&draw, i / LM_GROUP);
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) {
    kept.v[j] = block.word[j] >> 8 >= threshold;
    out.v[j] = lm_put<T>(kept.v[j] ? lm_get<lm_compute<T>>(in.v[j]) * scale : (lm_compute<T>)0);
  }
  if (together) {
    lm_store<LM_GROUP>(y + i, out);
    lm_store<LM_GROUP>(keep + i, kept);
  } else {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) {
      if (i + j < n) y[i + j] = out.v[j], keep[i + j] = kept.v[j];
    }
  }
}

int lm_dropout_mask(int dtype, const void *x, void *y, uint8_t *keep, int64_t n, lm_blocks_drawn draw,
                    uint32_t threshold, double scale, void *stream) {
  bool aligned = (uintptr_t)x % 16 == 0 && (uintptr_t)y % 16 == 0 && (uintptr_t)keep % LM_GROUP == 0;
  return lm_for_float(dtype, [&](auto element) {
    typedef decltype(element) T;
    return lm_launch(lm_dropout_kernel<T>, lm_blocks(n, LM_FILL_BLOCK * LM_GROUP, INT32_MAX), LM_FILL_BLOCK, 0, stream,
                     (const T *)x, (T *)y, keep, n, draw, threshold, scale, aligned);
  });
}
