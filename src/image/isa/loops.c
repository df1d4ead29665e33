#include "image/isa/loops.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "scalar_functions_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Defines a span that processes each channel by itself: y[i] = value, an expression of x[i]; `numbers` declares what it
 * needs of v for channel c. */
#define CHANNEL_SPAN(name, from, to, numbers, value)                                                    \
  static void name(const void *const *in, void *const *out, int channels, int64_t n, const double *v) { \
    (void)v;                                                                                            \
    for (int c = 0; c < channels; c++) {                                                                \
      const from *x = in[c];                                                                            \
      to *restrict y = out[c];                                                                          \
      numbers;                                                                                          \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = value;                                 \
    }                                                                                                   \
  }

/* ---- differences between dtypes */

#define REAL float
#define FLOOR floorf
#define NEAREST rintf

#define LM_E U8
#define BOUND 255
#define WHITE 255
#define WHOLE floorf
#define WHOLE_NEAR rintf
#define TO_UNIT(x) ((float)(x) * (float)(1.0 / 255))
#define FROM_UNIT(v) ((uint8_t)(int32_t)((v)*255.999f < 255 ? (v)*255.999f : 255))
#define ROUNDED(v) round_U8(v)
#define CLIPPED(v) ((uint8_t)(int32_t)(v)) /* through int32, to which vectors convert */
static inline uint8_t round_U8(float v) {
  v = rintf(v);
  v = v > 0 ? v : 0;
  v = v < 255 ? v : 255;
  return (uint8_t)(int32_t)v;
}
/* Vectors gather floats but not bytes, so this loads pairs of bytes first and then computes. */
#define GATHERED(plane, indices, right, below, n)                                                             \
  {                                                                                                           \
    int32_t u0[CHUNK], d0[CHUNK];                                                                             \
    if (right) {                                                                                              \
      for (int i = 0; i < (n); i++) {                                                                         \
        const uint8_t *u = (plane) + (indices)[i], *d = u + (below);                                          \
        u0[i] = u[0] | u[1] << 8, d0[i] = d[0] | d[1] << 8; /* one load each */                               \
      }                                                                                                       \
    } else {                                                                                                  \
      for (int i = 0; i < (n); i++) u0[i] = (plane)[(indices)[i]], d0[i] = (plane)[(indices)[i] + (below)];   \
    }                                                                                                         \
    _Pragma("omp simd") for (int i = 0; i < (n); i++) {                                                       \
      sum[i] = w00[i] * (float)(u0[i] & 255) + w01[i] * (float)(u0[i] >> 8) + w10[i] * (float)(d0[i] & 255) + \
               w11[i] * (float)(d0[i] >> 8);                                                                  \
    }                                                                                                         \
  }
#include "image/isa/pixels.inc"
#undef LM_E
#undef GATHERED
#undef BOUND
#undef WHITE
#undef WHOLE
#undef WHOLE_NEAR
#undef TO_UNIT
#undef FROM_UNIT
#undef ROUNDED
#undef CLIPPED

#define GATHERED(plane, indices, right, below, n)                                                       \
  {                                                                                                     \
    const LM_ELEM *u1 = (plane) + (right), *d0 = (plane) + (below), *d1 = d0 + (right);                 \
    _Pragma("omp simd") for (int i = 0; i < (n); i++) {                                                 \
      sum[i] = w00[i] * (plane)[(indices)[i]] + w01[i] * u1[(indices)[i]] + w10[i] * d0[(indices)[i]] + \
               w11[i] * d1[(indices)[i]];                                                               \
    }                                                                                                   \
  }
#define BOUND 1
#define WHITE 1
#define WHOLE
#define WHOLE_NEAR
#define TO_UNIT(x) ((float)(x))
#define FROM_UNIT(v) (v)
#define ROUNDED(v) (v)
#define CLIPPED(v) (v)

#define LM_E F32
#include "image/isa/pixels.inc"
#undef LM_E
#undef REAL
#undef FLOOR
#undef NEAREST
#define REAL double
#define FLOOR floor
#define NEAREST rint
#define LM_E F64
#include "image/isa/pixels.inc"
#undef LM_E

/* ---- weighted sums of rows */

#if defined(__AVX512BW__)
enum { WIDE = 32 };
typedef __m512i wide;
#define WIDE_(name) _mm512_##name
static inline wide words(const uint8_t *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)p)); }
static inline void store(uint8_t *to, wide sums) {
  sums = _mm512_max_epi16(sums, _mm512_setzero_si512());
  _mm256_storeu_si256((void *)to, _mm512_cvtusepi16_epi8(sums));
}
#elif defined(__AVX2__)
enum { WIDE = 16 };
typedef __m256i wide;
#define WIDE_(name) _mm256_##name
static inline wide words(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p)); }
static inline void store(uint8_t *to, wide sums) {
  _mm_storeu_si128((void *)to, _mm_packus_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}
#elif defined(__SSE4_1__)
enum { WIDE = 8 };
typedef __m128i wide;
#define WIDE_(name) _mm_##name
static inline wide words(const uint8_t *p) { return _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p)); }
static inline void store(uint8_t *to, wide sums) { _mm_storel_epi64((void *)to, _mm_packus_epi16(sums, sums)); }
#else
enum { WIDE = 1 << 20 };
#endif

/* Computes WIDE weighted sums of `count` rows, two rows at a time. */
static inline void weigh_wide(uint8_t *to, const uint8_t *from, int64_t step, int64_t count, const int16_t *w,
                              int bits) {
#ifdef WIDE_
  wide low = WIDE_(set1_epi32)(1 << (bits - 1)), high = low;
  for (int64_t k = 0; k < count; k += 2) {
    bool last = k + 1 == count;
    wide a = words(from), b = words(last ? from : from + step);
    int32_t pair = (uint16_t)w[k] | (last ? 0 : (int32_t)((uint32_t)(uint16_t)w[k + 1] << 16));
    wide both = WIDE_(set1_epi32)(pair);
    low = WIDE_(add_epi32)(low, WIDE_(madd_epi16)(WIDE_(unpacklo_epi16)(a, b), both));
    high = WIDE_(add_epi32)(high, WIDE_(madd_epi16)(WIDE_(unpackhi_epi16)(a, b), both));
    from += 2 * step;
  }
  __m128i by = _mm_cvtsi32_si128(bits);
  store(to, WIDE_(packs_epi32)(WIDE_(sra_epi32)(low, by), WIDE_(sra_epi32)(high, by)));
#else
  (void)to, (void)from, (void)step, (void)count, (void)w, (void)bits;
#endif
}

static inline uint8_t weigh_one(const uint8_t *from, int64_t step, int64_t count, const int16_t *w, int bits) {
  int32_t sum = 1 << (bits - 1);
  for (int64_t k = 0; k < count; k++) sum += w[k] * from[k * step];
  sum >>= bits;
  return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void weigh_U8(void *dst, int64_t dstep, const void *src, int64_t sstep, int64_t origin, int64_t n,
                     const lm_taps *t, int64_t low, int64_t high) {
  for (int64_t o = low; o < high; o++) {
    const uint8_t *from = (const uint8_t *)src + (t->first[o] - origin) * sstep;
    uint8_t *to = (uint8_t *)dst + (o - low) * dstep;
    const int16_t *w = (const int16_t *)t->weight + o * t->most;
    int64_t count = t->count[o], x = 0;
    for (; x + WIDE <= n; x += WIDE) weigh_wide(to + x, from + x, sstep, count, w, t->bits);
    if (x < n && n >= WIDE) {
      weigh_wide(to + n - WIDE, from + n - WIDE, sstep, count, w, t->bits);
    } else {
      for (; x < n; x++) to[x] = weigh_one(from + x, sstep, count, w, t->bits);
    }
  }
}

#define WEIGH(E, type, lanes)                                                                                 \
  static void weigh_##E(void *dst, int64_t dstep, const void *src, int64_t sstep, int64_t origin, int64_t n,  \
                        const lm_taps *t, int64_t low, int64_t high) {                                        \
    typedef type vector __attribute__((vector_size(lanes * sizeof(type)), aligned(sizeof(type)), may_alias)); \
    for (int64_t o = low; o < high; o++) {                                                                    \
      const type *from = (const type *)src + (t->first[o] - origin) * sstep;                                  \
      type *to = (type *)dst + (o - low) * dstep;                                                             \
      const type *w = (const type *)t->weight + o * t->most;                                                  \
      int64_t count = t->count[o], x = 0;                                                                     \
      for (; x + 2 * lanes <= n; x += 2 * lanes) {                                                            \
        vector a = {0}, b = {0};                                                                              \
        for (int64_t k = 0; k < count; k++) {                                                                 \
          const type *p = from + x + k * sstep;                                                               \
          a += w[k] * *(const vector *)p;                                                                     \
          b += w[k] * *(const vector *)(p + lanes);                                                           \
        }                                                                                                     \
        *(vector *)(to + x) = a;                                                                              \
        *(vector *)(to + x + lanes) = b;                                                                      \
      }                                                                                                       \
      for (; x < n; x++) {                                                                                    \
        type sum = 0;                                                                                         \
        for (int64_t k = 0; k < count; k++) sum += w[k] * from[x + k * sstep];                                \
        to[x] = sum;                                                                                          \
      }                                                                                                       \
    }                                                                                                         \
  }
#if defined(__AVX512F__)
WEIGH(F32, float, 16)
WEIGH(F64, double, 8)
#elif defined(__AVX__)
WEIGH(F32, float, 8)
WEIGH(F64, double, 4)
#else
WEIGH(F32, float, 4)
WEIGH(F64, double, 2)
#endif

/* ---- transposing */

/* Interleaves rows i and i + half of x as rows 2 i and 2 i + 1 of y. Such steps, log2(side) of them, transpose a
 * square: rows have become columns. LOW and HIGH are a vector's elements of both rows in that order. */
#define LOW_U8 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_U8 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LOW_F32 0, 4, 1, 5
#define HIGH_F32 2, 6, 3, 7
#define INTERLEAVE(E, x, y, half)                                        \
  _Pragma("GCC unroll 8") for (int i = 0; i < half; i++) {               \
    y[2 * i] = __builtin_shufflevector(x[i], x[i + half], LOW_##E);      \
    y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + half], HIGH_##E); \
  }
#define SQUARE(E, type, side)                                                                             \
  static inline void square_##E(type *to, int64_t dstep, const type *from, int64_t sstep) {               \
    typedef type row __attribute__((vector_size(side * sizeof(type)), aligned(sizeof(type)), may_alias)); \
    row x[side], y[side];                                                                                 \
    for (int i = 0; i < side; i++) x[i] = *(const row *)(from + i * sstep);                               \
    INTERLEAVE(E, x, y, side / 2)                                                                         \
    INTERLEAVE(E, y, x, side / 2)                                                                         \
    if (side > 4) {                                                                                       \
      INTERLEAVE(E, x, y, side / 2)                                                                       \
      INTERLEAVE(E, y, x, side / 2)                                                                       \
    }                                                                                                     \
    for (int i = 0; i < side; i++) *(row *)(to + i * dstep) = x[i];                                       \
  }
SQUARE(U8, uint8_t, 16)
SQUARE(F32, float, 4)
static inline void square_F64(double *to, int64_t dstep, const double *from, int64_t sstep) {
  to[0] = from[0], to[1] = from[sstep], to[dstep] = from[1], to[dstep + 1] = from[sstep + 1];
}

#define TRANSPOSE(E, type, side)                                                                                       \
  static void transpose_##E(void *dst, int64_t dstep, const void *src, int64_t sstep, int64_t rows, int64_t columns) { \
    const type *from = src;                                                                                            \
    type *to = dst;                                                                                                    \
    int64_t r = rows / side * side, c = columns / side * side;                                                         \
    for (int64_t j = 0; j < c; j += side)                                                                              \
      for (int64_t i = 0; i < r; i += side) square_##E(to + j * dstep + i, dstep, from + i * sstep + j, sstep);        \
    for (int64_t i = 0; i < rows; i++)                                                                                 \
      for (int64_t j = i < r ? c : 0; j < columns; j++) to[j * dstep + i] = from[i * sstep + j];                       \
  }
TRANSPOSE(U8, uint8_t, 16)
TRANSPOSE(F32, float, 4)
TRANSPOSE(F64, double, 2)

/* ---- functions of one dtype or two */

CHANNEL_SPAN(posterize_U8, uint8_t, uint8_t, int bits = (int)v[0], x[i] & (uint8_t)(((1 << bits) - 1) << (8 - bits)))

#define FLOAT_SPANS(E, type, floor_, pow_)                                                                   \
  static inline type posterized_##E(type x, type levels, type one) {                                         \
    type level = floor_(x * levels);                                                                         \
    level = level < 0 ? 0 : level;                                                                           \
    return (level > levels - 1 ? levels - 1 : level) * one;                                                  \
  }                                                                                                          \
  CHANNEL_SPAN(posterize_##E, type, type, type levels = (type)(1 << (int)v[0]),                              \
               posterized_##E(x[i], levels, (type)(1.0 / (1 << (int)v[0]))))                                 \
  static void gamma_##E(const void *const *in, void *const *out, int channels, int64_t n, const double *v) { \
    type power = (type)v[0], gain = (type)v[1];                                                              \
    for (int c = 0; c < channels; c++) {                                                                     \
      const type *x = in[c];                                                                                 \
      type *restrict y = out[c];                                                                             \
      if (gain == 1) {                                                                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = pow_(x[i], power);                        \
      } else {                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                \
          type scaled = pow_(x[i], power) * gain;                                                            \
          scaled = scaled < 0 ? 0 : scaled;                                                                  \
          y[i] = scaled > 1 ? 1 : scaled;                                                                    \
        }                                                                                                    \
      }                                                                                                      \
    }                                                                                                        \
  }                                                                                                          \
  CHANNEL_SPAN(normalize_##E, type, type, type mean = (type)v[2 * c];                                        \
               type factor = (type)v[2 * c + 1], (x[i] - mean) * factor)
FLOAT_SPANS(F32, float, floorf, powf)
FLOAT_SPANS(F64, double, floor, pow)

CHANNEL_SPAN(normalize_U8, uint8_t, float, float factor = (float)v[2 * c];
             float shift = (float)v[2 * c + 1], (float)x[i] * factor + shift)
CHANNEL_SPAN(convert_U8, uint8_t, float, , (float)x[i] * (float)(1.0 / 255))

/* 255.999 splits 0 to 1 into 256 equal parts, as torchvision does. */
#define TO_BYTES(E, type)                                   \
  static inline uint8_t to_byte_##E(type x) {               \
    type scaled = x * (type)255.999;                        \
    scaled = scaled > 0 ? scaled : 0;                       \
    return (uint8_t)(int32_t)(scaled < 255 ? scaled : 255); \
  }                                                         \
  CHANNEL_SPAN(convert_##E, type, uint8_t, , to_byte_##E(x[i]))
TO_BYTES(F32, float)
TO_BYTES(F64, double)

static void look_up_U8(const void *const *in, void *const *out, int channels, int64_t n, const double *v) {
  for (int c = 0; c < channels; c++) {
    const uint8_t *x = in[c];
    uint8_t *restrict y = out[c], table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)v[256 * c + i];
    for (int64_t i = 0; i < n; i++) y[i] = table[x[i]];
  }
}

#define COMMON(E)                                                                                         \
  .weigh = weigh_##E, .transpose = transpose_##E, .nearest = nearest_##E, .bilinear = bilinear_##E,       \
  .blend = blend_##E, .stretch = stretch_##E, .saturate = saturate_##E, .hue = hue_##E, .gray = gray_##E, \
  .invert = invert_##E, .posterize = posterize_##E, .solarize = solarize_##E, .reverse = reverse_##E,     \
  .normalize = normalize_##E, .convert = convert_##E, .gray_sum = gray_sum_##E, .extremes = extremes_##E, \
  .slide = slide_##E, .widen = widen_##E, .stack = stack_##E, .sharpen = sharpen_##E

const struct lm_image_loops LM_ISA_NAME(lm_image_loops) = {.of = {
                                                               [LM_U8] = {COMMON(U8), .look_up = look_up_U8},
                                                               [LM_F32] = {COMMON(F32), .gamma = gamma_F32},
                                                               [LM_F64] = {COMMON(F64), .gamma = gamma_F64},
                                                           }};
