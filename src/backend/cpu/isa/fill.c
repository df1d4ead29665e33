#include "backend/cpu/isa/fill.h"

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/nontemporal_copy.h"
#ifdef __AVX__
#include <immintrin.h>
#endif

/* Before philox.h, so that its log, sin and cos are vector forms. gcc would make one sincos of the two, which
 * has none: other names for the same functions keep them apart. */
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

/* A tile's worth of blocks, and their words or values one kind after the other, so that loops over blocks
 * vectorize: word[w][b]. All loops run over whole vectors; what an element gets does not depend on its place. */
enum { MAX_CHUNK = 512, BLOCKS = MAX_CHUNK / 4, VECTOR = 16 };

static int whole_vectors(int blocks) { return lm_round_up(blocks, VECTOR); }

static void words_of(lm_draw draw, uint64_t first, int blocks, uint32_t word[4][BLOCKS]) {
#pragma omp simd
  for (int b = 0; b < blocks; b++) {
    lm_philox_block p = lm_philox(draw.seed, draw.offset + first + (uint64_t)b);
    word[0][b] = p.word[0], word[1][b] = p.word[1], word[2][b] = p.word[2], word[3][b] = p.word[3];
  }
}

/* Elements in order from values by word. */
static void spread_f32(float *out, int n, float value[4][BLOCKS]) {
  int whole = n / 4;
  for (int b = 0; b < whole; b++) {
    out[4 * b] = value[0][b], out[4 * b + 1] = value[1][b], out[4 * b + 2] = value[2][b], out[4 * b + 3] = value[3][b];
  }
  for (int i = 4 * whole; i < n; i++) out[i] = value[i % 4][i / 4];
}

static void spread_f64(double *out, int n, double value[2][BLOCKS]) {
  int whole = n / 2;
  for (int b = 0; b < whole; b++) out[2 * b] = value[0][b], out[2 * b + 1] = value[1][b];
  for (int i = 2 * whole; i < n; i++) out[i] = value[0][i / 2];
}

static uint64_t join(const uint32_t word[4][BLOCKS], int half, int b) {
  return (uint64_t)word[2 * half + 1][b] << 32 | word[2 * half][b];
}

/* A loop over numbers of the tile, each from random bits of its own: `value` is of `bits`, and a and b are the op's
 * numbers. */
#define EACH_F32(name, value_)                                              \
  static void name(const void *context, int64_t first, int n, void *tile) { \
    const lm_random *r = context;                                           \
    float a = (float)r->a, b = (float)r->b, value[4][BLOCKS];               \
    uint32_t word[4][BLOCKS];                                               \
    int blocks = whole_vectors((n + 3) / 4);                                \
    (void)b;                                                                \
    words_of(r->draw, (uint64_t)first / 4, blocks, word);                   \
    for (int w = 0; w < 4; w++) {                                           \
      for (int k = 0; k < blocks; k++) {                                    \
        uint32_t bits = word[w][k];                                         \
        value[w][k] = value_;                                               \
      }                                                                     \
    }                                                                       \
    spread_f32(tile, n, value);                                             \
  }
#define EACH_F64(name, value_)                                                                                \
  static void name(const void *context, int64_t first, int n, void *tile) {                                   \
    const lm_random *r = context;                                                                             \
    double a = r->a, b = r->b, value[2][BLOCKS];                                                              \
    uint32_t word[4][BLOCKS];                                                                                 \
    (void)b;                                                                                                  \
    for (int done = 0; done < n; done += MAX_CHUNK / 2) {                                                     \
      int part = n - done < MAX_CHUNK / 2 ? n - done : MAX_CHUNK / 2, blocks = whole_vectors((part + 1) / 2); \
      words_of(r->draw, (uint64_t)(first + done) / 2, blocks, word);                                          \
      for (int half = 0; half < 2; half++) {                                                                  \
        for (int k = 0; k < blocks; k++) {                                                                    \
          uint64_t bits = join(word, half, k);                                                                \
          value[half][k] = value_;                                                                            \
        }                                                                                                     \
      }                                                                                                       \
      spread_f64((double *)tile + done, part, value);                                                         \
    }                                                                                                         \
  }
EACH_F32(uniform_f32, lm_between_f32(bits & r->keep, a, b))
EACH_F64(uniform_f64, lm_between_f64(bits, a, b))
EACH_F32(exponential_f32, lm_exponential_f32(bits, a))
EACH_F64(exponential_f64, lm_exponential_f64(bits, a))
EACH_F32(cauchy_f32, lm_cauchy_f32(bits, a, b))
EACH_F64(cauchy_f64, lm_cauchy_f64(bits, a, b))
EACH_F64(geometric, lm_geometric(bits, a))
EACH_F32(bernoulli, lm_uniform_f32(bits) < a ? 1.0f : 0.0f)

static void normal_f32(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  float mean = (float)r->a, std = (float)r->b, value[4][BLOCKS];
  uint32_t word[4][BLOCKS];
  int blocks = whole_vectors((n + 3) / 4);
  words_of(r->draw, (uint64_t)first / 4, blocks, word);
  for (int w = 0; w < 4; w += 2) {
    for (int b = 0; b < blocks; b++) {
      float pair[2];
      lm_normal_f32(word[w][b], word[w + 1][b], pair);
      value[w][b] = mean + std * pair[0], value[w + 1][b] = mean + std * pair[1];
    }
  }
  spread_f32(tile, n, value);
}

static void normal_f64(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  double mean = r->a, std = r->b, value[2][BLOCKS];
  uint32_t word[4][BLOCKS];
  for (int done = 0; done < n; done += MAX_CHUNK / 2) {
    int part = n - done < MAX_CHUNK / 2 ? n - done : MAX_CHUNK / 2, blocks = whole_vectors((part + 1) / 2);
    words_of(r->draw, (uint64_t)(first + done) / 2, blocks, word);
    for (int b = 0; b < blocks; b++) {
      double pair[2];
      lm_normal_f64(join(word, 0, b), join(word, 1, b), pair);
      value[0][b] = mean + std * pair[0], value[1][b] = mean + std * pair[1];
    }
    spread_f64((double *)tile + done, part, value);
  }
}

static void bits(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  uint64_t *out = tile, value[2][BLOCKS];
  uint32_t word[4][BLOCKS];
  for (int done = 0; done < n; done += MAX_CHUNK / 2, out += MAX_CHUNK / 2) {
    int part = n - done < MAX_CHUNK / 2 ? n - done : MAX_CHUNK / 2, blocks = whole_vectors((part + 1) / 2);
    words_of(r->draw, (uint64_t)(first + done) / 2, blocks, word);
    for (int half = 0; half < 2; half++) {
      for (int k = 0; k < blocks; k++) value[half][k] = join(word, half, k);
    }
    for (int k = 0; k < part / 2; k++) out[2 * k] = value[0][k], out[2 * k + 1] = value[1][k];
    if (part % 2) out[part - 1] = value[0][part / 2];
  }
}

static void integers(const void *context, int64_t first, int n, void *tile) {
  const lm_random *r = context;
  uint64_t *out = tile, from = (uint64_t)r->from, range = (uint64_t)r->to - from;
  bits(context, first, n, tile);
  for (int i = 0; i < n; i++) out[i] = from + lm_uniform_below(out[i], range);
}

/* e to the power of normal numbers. */
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

static void cosines(const void *context, int64_t first, int n, void *tile) {
  const lm_cosines *terms = context;
  const double step = terms->step, a0 = terms->a0, a1 = terms->a1, a2 = terms->a2, from = (double)first;
  double *restrict out = tile;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] = a0 - a1 * cos((from + i) * step);
  if (a2 == 0) return;
#pragma omp simd
  for (int i = 0; i < n; i++) out[i] += a2 * cos((from + i) * step * 2);
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
                                                         .bits = bits,
                                                         .cosines = cosines,
                                                         .dropout = {LM_FLOATS(dropout)}};

/* ---- lines past the caches */

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

const struct lm_nontemporal_loops LM_ISA_NAME(lm_nontemporal_loops) = {.lines = lines};
