#include "backend/cpu/isa/fill.h"

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/nontemporal_copy.h"
#ifdef __AVX__
#include <immintrin.h>
#endif

/* Included before philox.h, whose log, sin and cos it makes vector forms. gcc would make one sincos of sin and cos,
 * which has none: other names for the same functions keep them apart. */
#include "scalar_functions_cpu.h"
#ifdef LM_VECTOR
LM_VECTOR float lm_sinf(float) __asm__("sinf");
LM_VECTOR float lm_cosf(float) __asm__("cosf");
LM_VECTOR double lm_sin(double) __asm__("sin");
LM_VECTOR double lm_cos(double) __asm__("cos");
#define sinf lm_sinf
#define cosf lm_cosf
#define sin lm_sin
#define cos lm_cos
#endif
#include "philox.h"

/* Loops run over whole vectors of words, in their order: an element's value does not depend on its position in a
 * tile. */
enum { MAX_CHUNK = 512 /* 32-bit words */ };

/* Writes the words of blocks from `first` on, in whole vectors; returns how many words. */
static int words_of(lm_draw draw, uint64_t first, int words, uint32_t *word) {
  int blocks = lm_round_up(words, 4 * LM_DRAWN_TOGETHER) / 4;
  lm_drawn_words(draw, draw.offset + first, blocks, 0, (int32_t *)word);
  return 4 * blocks;
}

/* Defines a loop over numbers of the tile, each from its own random `bits`: value_ is an expression of these and of the
 * op's numbers a and b. */
#define EACH_F32(name, value_)                                              \
  static void name(const void *context, int64_t first, int n, void *tile) { \
    const lm_random *r = context;                                           \
    float a = (float)r->a, b = (float)r->b, value[MAX_CHUNK];               \
    uint32_t word[MAX_CHUNK];                                               \
    int words = words_of(r->draw, (uint64_t)first / 4, n, word);            \
    (void)b;                                                                \
    for (int k = 0; k < words; k++) {                                       \
      uint32_t bits = word[k];                                              \
      value[k] = value_;                                                    \
    }                                                                       \
    memcpy(tile, value, (size_t)n * sizeof *value);                         \
  }
#define EACH_F64(name, value_)                                                           \
  static void name(const void *context, int64_t first, int n, void *tile) {              \
    const lm_random *r = context;                                                        \
    double a = r->a, b = r->b, value[MAX_CHUNK / 2];                                     \
    uint64_t word[MAX_CHUNK / 2];                                                        \
    (void)b;                                                                             \
    for (int done = 0; done < n; done += MAX_CHUNK / 2) {                                \
      int part = n - done < MAX_CHUNK / 2 ? n - done : MAX_CHUNK / 2, all;               \
      all = words_of(r->draw, (uint64_t)(first + done) / 2, 2 * part, (uint32_t *)word); \
      for (int k = 0; k < all / 2; k++) {                                                \
        uint64_t bits = word[k];                                                         \
        value[k] = value_;                                                               \
      }                                                                                  \
      memcpy((double *)tile + done, value, (size_t)part * sizeof *value);                \
    }                                                                                    \
  }
EACH_F32(uniform_f32, lm_between_f32(bits & r->keep, a, b))
EACH_F64(uniform_f64, lm_between_f64(bits, a, b))
EACH_F32(exponential_f32, lm_exponential_f32(bits, a))
EACH_F64(exponential_f64, lm_exponential_f64(bits, a))
EACH_F32(cauchy_f32, lm_cauchy_f32(bits, a, b))
EACH_F64(cauchy_f64, lm_cauchy_f64(bits, a, b))
EACH_F64(geometric, lm_geometric(bits, a))
EACH_F32(bernoulli, lm_uniform_f32(bits) < a ? 1.0f : 0.0f)

/* Draws as lm_normal_f32 does, in loops of one function each: compilers make sincosf of a cosine and a sine in one
 * loop, which has no vector form. */
static void normal_f32(const void *context, int64_t first, int n, void *tile) {
  enum { PAIRS = MAX_CHUNK / 2 };
  const lm_random *r = context;
  float mean = (float)r->a, std = (float)r->b, radius[PAIRS], angle[PAIRS], cosine[PAIRS], value[MAX_CHUNK];
  uint64_t word[PAIRS];
  int pairs = words_of(r->draw, (uint64_t)first / 4, n, (uint32_t *)word) / 2;
  for (int k = 0; k < pairs; k++) {
    float u = (float)(int32_t)(((uint32_t)word[k] >> 8) + 1) * 0x1p-24f;
    angle[k] = 6.2831853071795864769f * ((float)(int32_t)(word[k] >> 40) * 0x1p-24f);
    radius[k] = sqrtf(-2.0f * logf(u));
  }
  for (int k = 0; k < pairs; k++) cosine[k] = mean + std * (radius[k] * cosf(angle[k]));
  for (int k = 0; k < pairs; k++) {
    float sine = mean + std * (radius[k] * sinf(angle[k]));
    value[2 * k] = cosine[k], value[2 * k + 1] = sine;
  }
  memcpy(tile, value, (size_t)n * sizeof *value);
}

static void normal_f64(const void *context, int64_t first, int n, void *tile) {
  enum { PAIRS = MAX_CHUNK / 4 };
  const lm_random *r = context;
  double mean = r->a, std = r->b, radius[PAIRS], angle[PAIRS], cosine[PAIRS], value[2 * PAIRS];
  uint64_t word[2 * PAIRS];
  for (int done = 0; done < n; done += 2 * PAIRS) {
    int part = n - done < 2 * PAIRS ? n - done : 2 * PAIRS, pairs;
    pairs = words_of(r->draw, (uint64_t)(first + done) / 2, 2 * part, (uint32_t *)word) / 4;
    for (int k = 0; k < pairs; k++) {
      double u = (double)((word[2 * k] >> 11) + 1) * 0x1p-53;
      angle[k] = 6.2831853071795864769 * lm_uniform_f64(word[2 * k + 1]);
      radius[k] = sqrt(-2.0 * log(u));
    }
    for (int k = 0; k < pairs; k++) cosine[k] = mean + std * (radius[k] * cos(angle[k]));
    for (int k = 0; k < pairs; k++) {
      double sine = mean + std * (radius[k] * sin(angle[k]));
      value[2 * k] = cosine[k], value[2 * k + 1] = sine;
    }
    memcpy((double *)tile + done, value, (size_t)part * sizeof *value);
  }
}

static void fill_bits(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  uint64_t *out = tile, word[MAX_CHUNK / 2];
  for (int done = 0; done < n; done += MAX_CHUNK / 2) {
    int part = n - done < MAX_CHUNK / 2 ? n - done : MAX_CHUNK / 2;
    words_of(r->draw, (uint64_t)(first + done) / 2, 2 * part, (uint32_t *)word);
    memcpy(out + done, word, (size_t)part * sizeof *word);
  }
}

static void integers(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  uint64_t *out = tile, from = (uint64_t)r->from, range = (uint64_t)r->to - from;
  fill_bits(context, first, n, tile);
  if (range >> 32) {
    for (int i = 0; i < n; i++) out[i] = from + lm_uniform_below(out[i], range);
  } else { /* computes bits * range >> 64 by two products */
    for (int i = 0; i < n; i++) {
      uint64_t low = (uint32_t)out[i] * range >> 32;
      out[i] = from + (((out[i] >> 32) * range + low) >> 32);
    }
  }
}

/* Draws e to the power of normal numbers. */
static void log_normal_f32(const void *context, int64_t first, int n, void *tile) {
  float *out = tile;
  normal_f32(context, first, n, tile);
  for (int i = 0; i < n; i++) out[i] = expf(out[i]);
}

static void log_normal_f64(const void *context, int64_t first, int n, void *tile) {
  double *out = tile;
  normal_f64(context, first, n, tile);
  for (int i = 0; i < n; i++) out[i] = exp(out[i]);
}

static void fill_cosines(const void *context, int64_t first, int n, void *tile) {
  const lm_cosines *terms = context;
  const double step = terms->step, a0 = terms->a0, a1 = terms->a1, a2 = terms->a2, from = (double)first;
  double *restrict out = tile;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] = a0 - a1 * cos((from + i) * step);
  if (a2 == 0) return;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] += a2 * cos((from + i) * step * 2);
}

static void arange_f64(const void *context, int64_t first, int n, void *tile) {
  const lm_sequence *s = context;
  const double start = s->start, step = s->step, from = (double)first;
  double *restrict out = tile;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] = start + (from + i) * step;
}

static void arange_i64(const void *context, int64_t first, int n, void *tile) {
  const lm_sequence *s = context;
  const int64_t step = (int64_t)s->step, from = (int64_t)s->start + first * step;
  int64_t *restrict out = tile;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] = from + i * step;
}

static void linspace(const void *context, int64_t first, int n, void *tile) {
  const lm_sequence *s = context;
  const double start = s->start, stop = s->stop, step = s->step, from = (double)first, last = (double)(s->steps - 1);
  const int half = (int)lm_min(lm_max(s->steps / 2 - first, 0), n);
  double *restrict out = tile;
#pragma omp simd
  for (int i = 0; i < half; i++) out[i] = start + step * (from + i);
#pragma omp simd
  for (int i = half; i < n; i++) out[i] = stop - step * (last - (from + i));
}

#define LM_TEMPLATE "backend/cpu/isa/templates/dropout.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_fill_loops LM_ISA_NAME(lm_fill_loops) = {.f32 = {[LM_DRAW_UNIFORM] = uniform_f32,
                                                                 [LM_DRAW_NORMAL] = normal_f32,
                                                                 [LM_DRAW_LOG_NORMAL] = log_normal_f32,
                                                                 [LM_DRAW_EXPONENTIAL] = exponential_f32,
                                                                 [LM_DRAW_CAUCHY] = cauchy_f32,
                                                                 [LM_DRAW_BERNOULLI] = bernoulli},
                                                         .wide = {[LM_DRAW_UNIFORM] = uniform_f64,
                                                                  [LM_DRAW_NORMAL] = normal_f64,
                                                                  [LM_DRAW_LOG_NORMAL] = log_normal_f64,
                                                                  [LM_DRAW_EXPONENTIAL] = exponential_f64,
                                                                  [LM_DRAW_CAUCHY] = cauchy_f64,
                                                                  [LM_DRAW_GEOMETRIC] = geometric,
                                                                  [LM_DRAW_INTEGERS] = integers},
                                                         .bits = fill_bits,
                                                         .cosines = fill_cosines,
                                                         .arange_f64 = arange_f64,
                                                         .arange_i64 = arange_i64,
                                                         .linspace = linspace,
                                                         .dropout = {LM_FLOATS(dropout)}};

/* ---- copies of whole lines past the caches */

static void lines(void *dst, const void *src, size_t bytes) {
#if defined(__AVX512F__)
  for (size_t i = 0; i < bytes; i += 64)
    _mm512_stream_si512((void *)((char *)dst + i), _mm512_loadu_si512((const void *)((const char *)src + i)));
#elif defined(__AVX__)
  for (size_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256((void *)((char *)dst + i), _mm256_loadu_si256((const void *)((const char *)src + i)));
#elif defined(__SSE2__)
  for (size_t i = 0; i < bytes; i += 16)
    _mm_stream_si128((void *)((char *)dst + i), _mm_loadu_si128((const void *)((const char *)src + i)));
#else
  memcpy(dst, src, bytes);
#endif
}

static void blocks(void *dst, const void *src, size_t bytes) {
  typedef uint8_t vec __attribute__((vector_size(32)));
  enum { VECTORS = LM_COPY_BLOCK / sizeof(vec) };
  for (size_t i = 0; i < bytes; i += LM_COPY_BLOCK) {
    vec block[VECTORS];
    LM_UNROLL
    for (size_t k = 0; k < VECTORS; k++) memcpy(&block[k], (const char *)src + i + k * sizeof(vec), sizeof(vec));
    __asm__ volatile("" ::: "memory"); /* without this the compiler mixes loads and stores */
    LM_UNROLL
    for (size_t k = 0; k < VECTORS; k++) memcpy((char *)dst + i + k * sizeof(vec), &block[k], sizeof(vec));
  }
}

const struct lm_nontemporal_loops LM_ISA_NAME(lm_nontemporal_loops) = {.lines = lines, .blocks = blocks};
