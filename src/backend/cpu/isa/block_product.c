#include "backend/cpu/isa/block_product.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/block_runs.h"
#include "backend/cpu/isa/int8_lanes.h"
#include "backend/cpu/isa/lanes.h"

enum { RUNS = LM_BLOCK_CHUNK / LM_RUN, MANY = 8, STEPS = 127 };

/* ---- scales of blocks */

/* Reads the scales and minima of a chunk, which is one block or has RUNS of one group. */
LM_INLINE void scales_of(const lm_block_kind *k, const uint8_t *block, float *scale, float *minimum) {
#ifdef __AVX512BW__
  if (k->form == LM_BLOCK_HALF && (RUNS - 1) * k->bytes + 2 <= 128) { /* all are in two registers */
    const lm_pairs_32 word = {0, 1, 2, 3, 4, 5, 6, 7};
    const __m512i at = (__m512i)(word * (uint16_t)(k->bytes / 2));
    const __m512i all = _mm512_permutex2var_epi16(_mm512_loadu_si512(block), at, _mm512_loadu_si512(block + 64));
    _mm256_storeu_ps(scale, _mm256_cvtph_ps(_mm512_castsi512_si128(all)));
    return;
  }
#endif
#ifdef __F16C__
  if (k->elements == LM_RUN && (k->form == LM_BLOCK_HALF || k->form == LM_BLOCK_HALF_MINIMUM)) {
#define HALF(i) LM_LOAD_AS(short, block + (i)*k->bytes + at)
#define HALVES() _mm256_cvtph_ps(_mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7)))
    int at = 0;
    _mm256_storeu_ps(scale, HALVES());
    at = 2;
    if (lm_block_has_minima(k)) _mm256_storeu_ps(minimum, -HALVES());
    return;
  }
  if (k->form == LM_BLOCK_SIX_BITS) {
    uint32_t w[4];
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16(LM_LOAD_AS(short, block)));
    const __m256 least = _mm256_cvtph_ps(_mm_set1_epi16(LM_LOAD_AS(short, block + 2)));
    lm_block_six_bits(block, w);
    const __m128i bytes = _mm_setr_epi32((int)w[0], (int)w[1], (int)w[2], (int)w[3]);
    _mm256_storeu_ps(scale, d * _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
    _mm256_storeu_ps(minimum, least * _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
    return;
  }
  if (k->form == LM_BLOCK_SIGNED_BYTES) {
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16(LM_LOAD_AS(short, block + 208)));
    for (int i = 0; i < LM_BLOCK_GROUPS; i += 8)
      _mm256_storeu_ps(scale + i,
                       d * _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(block + 192 + i)))));
    return;
  }
#endif
  if (k->elements == LM_BLOCK_CHUNK) return lm_block_scales(k, block, scale, minimum);
  for (int i = 0; i < RUNS; i++) lm_block_scales(k, block + i * k->bytes, scale + i, minimum + i);
}

/* ---- sums of four products of bytes, added to `start`. w: unsigned; x: signed */

/* Returns true if the products subtract zero from w. Otherwise start has the products of x and -zero. Without VNNI,
 * sums of two products must fit 16 bits: one factor must be a signed byte. */
LM_INLINE bool subtracts_zero(bool vnni, int zero) { return !vnni && zero >= 64; }

#if defined(__AVX512BW__) || !defined(__AVX2__)
typedef uint8_t bytes_pack __attribute__((vector_size(sizeof(lm_int32_pack))));

LM_INLINE lm_int32_pack pack_dots(bool vnni, int zero, lm_int32_pack start, lm_int32_pack w, lm_int32_pack x) {
#ifdef __AVX512BW__
  if (vnni) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(start) : "v"(w), "v"(x));
    return start;
  }
#endif
  if (subtracts_zero(vnni, zero)) w = (lm_int32_pack)((bytes_pack)w - (uint8_t)zero);
  const lm_int16_pack a = (lm_int16_pack)w, b = (lm_int16_pack)x;
  return start + lm_pack_pairs(a << 8 >> 8, b << 8 >> 8) + lm_pack_pairs(a >> 8, b >> 8);
}
#else
#define pack_dots run_dots
#endif

#ifdef __AVX2__
LM_INLINE lm_int32_8 run_dots(bool vnni, int zero, lm_int32_8 start, lm_int32_8 w, lm_int32_8 x) {
#ifdef __AVX512BW__
  if (vnni) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(start) : "v"(w), "v"(x));
    return start;
  }
#endif
  __m256i size = (__m256i)w, by = (__m256i)x;
  if (subtracts_zero(vnni, zero)) {
    const __m256i s = _mm256_sub_epi8((__m256i)w, _mm256_set1_epi8((char)zero));
    size = _mm256_abs_epi8(s), by = _mm256_sign_epi8(by, s);
  }
  return start + (lm_int32_8)_mm256_madd_epi16(_mm256_maddubs_epi16(size, by), _mm256_set1_epi16(1));
}
#else
LM_INLINE lm_int32_8 run_dots(bool vnni, int zero, lm_int32_8 start, lm_int32_8 w, lm_int32_8 x) {
  for (int i = 0; i < 8; i += LM_PACK) {
    const lm_int32_pack part = pack_dots(vnni, zero, LM_LOAD_AS(lm_int32_pack, (const int32_t *)&start + i),
                                         LM_LOAD_AS(lm_int32_pack, (const int32_t *)&w + i),
                                         LM_LOAD_AS(lm_int32_pack, (const int32_t *)&x + i));
    memcpy((int32_t *)&start + i, &part, sizeof part);
  }
  return start;
}
#endif

/* ---- x */

#ifdef __AVX512BW__
#define SHARES_SCALES lm_shares_scales
#else
#define SHARES_SCALES(k) false
#endif

static void round_row(const lm_block_kind *k, int64_t n, const float *x, const lm_block_steps *to, int64_t r) {
  const int64_t row = to->row, groups = row / k->group;
  float *scale = to->scale + r * groups, *sum = to->sum + r * groups;
  for (int64_t i = 0; i < row; i += LM_RUN) {
    int8_t steps[LM_RUN];
    float largest, v[LM_RUN] = {0};
    int32_t most = 0, bits[LM_RUN];
    if (i < n) memcpy(v, x + i, sizeof v);
    memcpy(bits, v, sizeof v);
    for (int l = 0; l < LM_RUN; l++) { /* magnitudes are ordered as their bits are, whose maximum takes one step */
      const int32_t size = bits[l] & INT32_MAX;
      most = size > most ? size : most;
    }
    memcpy(&largest, &most, sizeof most);
    const float by = largest > 0 ? STEPS / largest : 0;
    const bool finite = isfinite(largest) && by < INFINITY;
    const float step = finite ? largest / STEPS : isfinite(largest) ? 0 : NAN;
    for (int l = 0; l < LM_RUN; l++) steps[l] = finite ? (int8_t)rintf(v[l] * by) : 0;
    const lm_int32_8 four =
        run_dots(false, 0, (lm_int32_8){0}, (lm_int32_8){0} + 0x01010101, LM_LOAD_AS(lm_int32_8, steps));
    const lm_int32_8 start = four * -k->zero;
    if (to->part && SHARES_SCALES(k)) { /* in the order of lm_quarter */
      const int64_t at = r * row + i / 128 * 128 + i % 128 / 2;
      memcpy(to->steps + at, steps, LM_RUN / 2);
      memcpy(to->steps + at + 64, steps + LM_RUN / 2, LM_RUN / 2);
      for (int l = 0; l < 4; l++) to->part[at / 4 + l] = start[l] + start[l + 4];
    } else {
      memcpy(to->steps + r * row + i, steps, LM_RUN);
      if (to->part) memcpy(to->part + (r * row + i) / 4, &start, sizeof start);
    }
    for (int g = 0; g < LM_RUN; g += k->group) {
      int total = 0;
      for (int l = g / 4; l < (g + k->group) / 4; l++) total += four[l];
      const int64_t at = (i + g) / k->group;
      scale[at] = step, sum[at] = step * (float)total;
      if (to->start) to->start[r * groups + at] = -k->zero * total;
    }
  }
}

/* ---- few rows: each register has the integers of a run of one row of weight */

LM_INLINE float sum_of_8(lm_float_8 v) {
  lm_float_4 sum = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1);
  return sum[0] + sum[1];
}

#ifdef __AVX512BW__
enum { FEW_LANES = 16 };
#define few_dots pack_dots
#define few_integers lm_wide_integers
typedef lm_float_pack few_floats;
typedef lm_int32_pack few_ints;

/* A chunk's scales times x's. */
typedef few_floats few_scales;

LM_INLINE few_scales few_scales_of(const lm_block_kind *k, const float *scale, const float *factor) {
  __m512 to = _mm512_castps256_ps512(_mm256_loadu_ps(scale) * _mm256_loadu_ps(factor));
  if (k->group < LM_RUN) to = _mm512_insertf32x8(to, _mm256_loadu_ps(scale + 8) * _mm256_loadu_ps(factor + 8), 1);
  return (few_floats)to;
}

/* Returns the factors of run i's lanes. */
LM_INLINE few_floats few_factors(const lm_block_kind *k, const few_scales *of, int i) {
  const few_ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const few_ints group = lm_shares_scales(k) ? 2 * i + lane / 4 : (i * FEW_LANES + lane) / (k->group / 4);
  return (few_floats)_mm512_permutexvar_ps((__m512i)group, (__m512)*of);
}
#define sum_of lm_pack_sum
#else
enum { FEW_LANES = 8 };
#define few_dots run_dots
typedef lm_float_8 few_floats;
typedef lm_int32_8 few_ints;

LM_INLINE lm_bytes_32 few_integers(const lm_block_kind *k, const uint8_t *block, int i) {
  const int first = i * LM_RUN;
  return lm_run_integers(k, block + first / k->elements * k->bytes, first % k->elements);
}

typedef struct few_scales {
  float of[LM_BLOCK_GROUPS];
} few_scales;

LM_INLINE few_scales few_scales_of(const lm_block_kind *k, const float *scale, const float *factor) {
  few_scales to = {{0}};
  for (int i = 0; i < LM_BLOCK_CHUNK / k->group; i++) to.of[i] = scale[i] * factor[i];
  return to;
}

LM_INLINE few_floats few_factors(const lm_block_kind *k, const few_scales *s, int i) {
  const float a = s->of[i * LM_RUN / k->group], b = s->of[((i + 1) * LM_RUN - 1) / k->group];
  return (few_floats){a, a, a, a, b, b, b, b};
}
#define sum_of sum_of_8
#endif
enum { FEW_RUN = 4 * FEW_LANES, FEW_RUNS = LM_BLOCK_CHUNK / FEW_RUN };
/* Rows of x at a time, the most; rows of weight, far from one another: a processor reads these faster than one. */
#ifdef __AVX512BW__
enum { FEW = 8, OUTS = 4 };
#elif defined(__AVX2__)
enum { FEW = 4, OUTS = 4 };
#else
enum { FEW = 4, OUTS = 1 };
#endif

/* Sums of a row of weight and one of x: of products and of minima. */
typedef struct few_sum {
  few_floats more;
  lm_float_8 less;
} few_sum;

/* Adds the products of a chunk of a row of weight and of rows of x from element `at` of row `first` on. */
LM_INLINE void add_chunk(const lm_block_kind *k, bool vnni, int rows, const uint8_t *block, const lm_block_steps *x,
                         int64_t first, int64_t at, few_sum *to) {
  float scale[LM_BLOCK_GROUPS] __attribute__((aligned(64))), minimum[LM_BLOCK_GROUPS] __attribute__((aligned(64)));
  few_scales by[FEW];
  const int8_t *steps[FEW];
  const int32_t *part[FEW];
  scales_of(k, block, scale, minimum);
  for (int r = 0; r < rows; r++) {
    const uint64_t of = (uint64_t)((first + r) * x->row + at);
    const float *factor = x->scale + of / (unsigned)k->group, *sum = x->sum + of / (unsigned)k->group;
    steps[r] = x->steps + of, part[r] = x->part + of / 4;
    by[r] = few_scales_of(k, scale, factor);
    for (int i = 0; lm_block_has_minima(k) && i < LM_BLOCK_CHUNK / k->group; i += 8)
      to[r].less += LM_LOAD_AS(lm_float_8, minimum + i) * LM_LOAD_AS(lm_float_8, sum + i);
  }
  const int each = SHARES_SCALES(k) ? 2 : 1; /* registers of w for a sum */
#pragma GCC unroll 8
  for (int i = 0; i < FEW_RUNS; i += each) {
    few_ints w[2];
    for (int h = 0; h < each; h++) w[h] = (few_ints)few_integers(k, block, i + h);
    for (int r = 0; r < rows; r++) {
      few_ints dots = {0};
      if (k->zero && !subtracts_zero(vnni, k->zero)) dots = LM_LOAD_AS(few_ints, part[r] + i * FEW_LANES);
      for (int h = 0; h < each; h++)
        dots = few_dots(vnni, k->zero, dots, w[h], LM_LOAD_AS(few_ints, steps[r] + (i + h) * FEW_RUN));
      to[r].more += __builtin_convertvector(dots, few_floats) * few_factors(k, &by[r], i);
    }
  }
}

/* Multiplies `rows` rows of x by the `outs` rows of weight that are `apart` outputs from one another. */
LM_INLINE void multiply_few(const lm_block_kind *k, bool vnni, int rows, int outs, int64_t apart, int64_t n,
                            const lm_block_steps *x, int64_t first, const uint8_t *weight, const float *bias, float *y,
                            int64_t y_row) {
  const int bytes = LM_BLOCK_CHUNK / k->elements * k->bytes, ahead = outs > 1 ? 1024 : 4096;
  int64_t next = apart * (n / k->elements * k->bytes); /* bytes */
  few_sum sums[FEW] = {0};
  uint8_t last[OUTS][LM_BLOCK_CHUNK * 2];
  for (int64_t at = 0; at < n; at += LM_BLOCK_CHUNK, weight += bytes) {
    if (k->elements < LM_BLOCK_CHUNK && n - at < LM_BLOCK_CHUNK) { /* the rest is zeros */
      const int left = (int)(n - at) / k->elements * k->bytes;
      for (int o = 0; o < outs; o++) {
        memcpy(last[o], weight + o * next, (size_t)left);
        memset(last[o] + left, 0, (size_t)(bytes - left));
      }
      weight = last[0], next = sizeof last[0];
    }
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++) {
      for (int i = 0; i < bytes; i += lm_cache_line) /* the processor's own stop at pages */
        __builtin_prefetch(weight + o * next + ahead + i);
      add_chunk(k, vnni, rows, weight + o * next, x, first, at, sums + o * rows);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < outs * rows; i++) {
    const float less = lm_block_has_minima(k) ? sum_of_8(sums[i].less) : 0;
    const int64_t j = i / rows * apart;
    y[i % rows * y_row + j] = sum_of(sums[i].more) - less + (bias ? bias[j] : 0);
  }
}

LM_INLINE void few_of(const lm_block_kind *k, bool vnni, int64_t rows, int64_t outs, int64_t n, const lm_block_steps *x,
                      const uint8_t *weight, const float *bias, float *y, int64_t y_row) {
  const int64_t bytes = n / k->elements * k->bytes, apart = outs / OUTS;
  for (int64_t j = 0; j < outs; j = j + 1 == apart ? OUTS * apart : j + 1) {
    const int64_t to_next = j < apart ? apart : 0; /* the last, fewer than OUTS, are computed OUTS times */
    int64_t r = 0;
#define ROWS(each)                                                                 \
  for (; r + each <= rows; r += each)                                              \
    for (int64_t i = j; i < j + (to_next ? OUTS * apart : 1); i += apart + !apart) \
      multiply_few(k, vnni, each, 1, 0, n, x, r, weight + i * bytes, bias ? bias + i : NULL, y + r * y_row + i, y_row);
    ROWS(FEW)
    if (FEW > 4) ROWS(4)
#undef ROWS
    for (; r < rows; r++)
      multiply_few(k, vnni, 1, OUTS, to_next, n, x, r, weight + j * bytes, bias ? bias + j : NULL, y + r * y_row + j,
                   y_row);
  }
}

/* ---- many rows: each register has four integers of each of a panel's rows of weight */

typedef struct panel {
  uint8_t *bytes;         /* [elements / 4][LM_PACK][4] */
  float *scale, *minimum; /* [groups][LM_PACK] */
} panel;

LM_INLINE panel panel_at(void *scratch, int64_t row, int group) {
  const int64_t n = row * LM_PACK;
  return (panel){scratch, (float *)((char *)scratch + n), (float *)((char *)scratch + n) + n / group};
}

LM_INLINE void fill_panel(const lm_block_kind *k, int outs, int64_t n, const uint8_t *weight, const panel *to) {
  const int groups = k->elements / k->group;
  if (outs < LM_PACK && n > 0) {
    memset(to->bytes, 0, (size_t)(n * LM_PACK));
    memset(to->scale, 0, (size_t)(n / k->group * LM_PACK) * sizeof(float));
    memset(to->minimum, 0, (size_t)(n / k->group * LM_PACK) * sizeof(float));
  }
  for (int j = 0; j < outs; j++) {
    for (int64_t i = 0; i < n; i += k->elements, weight += k->bytes) {
      float scale[LM_BLOCK_GROUPS], minimum[LM_BLOCK_GROUPS];
      lm_block_scales(k, weight, scale, minimum);
      for (int g = 0; g < groups; g++) {
        to->scale[(i / k->group + g) * LM_PACK + j] = scale[g];
        if (lm_block_has_minima(k)) to->minimum[(i / k->group + g) * LM_PACK + j] = minimum[g];
      }
#pragma GCC unroll 8
      for (int at = 0; at < k->elements; at += LM_RUN) {
        const lm_words_8 words = (lm_words_8)lm_run_integers(k, weight, at);
        for (int l = 0; l < 8; l++) {
          const uint32_t word = words[l];
          memcpy(to->bytes + (((i + at) / 4 + l) * LM_PACK + j) * 4, &word, sizeof word);
        }
      }
    }
  }
}

LM_INLINE void multiply_many(const lm_block_kind *k, bool vnni, int rows, int outs, int64_t n, const lm_block_steps *x,
                             int64_t first, const panel *w, const float *bias, float *y, int64_t y_row) {
  const int64_t groups = x->row / k->group;
  const int8_t *steps = x->steps + first * x->row;
  lm_float_pack sum[MANY];
  for (int r = 0; r < rows; r++) sum[r] = (lm_float_pack){0};
  for (int64_t g = 0; g < n / k->group; g++) {
    const lm_float_pack scale = lm_pack_load(w->scale + g * LM_PACK);
    lm_int32_pack dots[MANY];
    for (int r = 0; r < rows; r++)
      dots[r] = (lm_int32_pack){0} + (subtracts_zero(vnni, k->zero) ? 0 : x->start[(first + r) * groups + g]);
    for (int i = 0; i < k->group; i += 4) {
      const int64_t at = g * k->group + i;
      const lm_int32_pack b = LM_LOAD_AS(lm_int32_pack, w->bytes + at * LM_PACK);
      for (int r = 0; r < rows; r++) {
        const lm_int32_pack four = (lm_int32_pack){0} + LM_LOAD_AS(int32_t, steps + r * x->row + at);
        dots[r] = pack_dots(vnni, k->zero, dots[r], b, four);
      }
    }
    for (int r = 0; r < rows; r++) {
      const int64_t of = (first + r) * groups + g;
      sum[r] += __builtin_convertvector(dots[r], lm_float_pack) * (scale * x->scale[of]);
      if (lm_block_has_minima(k)) sum[r] -= lm_pack_load(w->minimum + g * LM_PACK) * x->sum[of];
    }
  }
  for (int r = 0; r < rows; r++) {
    float each[LM_PACK];
    lm_pack_store(each, sum[r]);
    for (int j = 0; j < outs; j++) y[r * y_row + j] = each[j] + (bias ? bias[j] : 0);
  }
}

LM_INLINE void many_of(const lm_block_kind *k, bool vnni, int64_t rows, int outs, int64_t n, const lm_block_steps *x,
                       const uint8_t *weight, const float *bias, float *y, int64_t y_row, void *scratch) {
  const panel w = panel_at(scratch, x->row, k->group);
  int64_t r = 0;
  fill_panel(k, outs, n, weight, &w);
  for (; r + MANY <= rows; r += MANY) multiply_many(k, vnni, MANY, outs, n, x, r, &w, bias, y + r * y_row, y_row);
  for (; r < rows; r++) multiply_many(k, vnni, 1, outs, n, x, r, &w, bias, y + r * y_row, y_row);
}

/* ---- a function for each kind */

#ifdef __AVX512BW__
#define VNNI __builtin_cpu_supports("avx512vnni")
#else
#define VNNI false
#endif

#define X(name)                                                                                                 \
  static void few_##name(int64_t rows, int64_t outs, int64_t n, const lm_block_steps *x, const uint8_t *weight, \
                         const float *bias, float *y, int64_t y_row) {                                          \
    if (VNNI)                                                                                                   \
      few_of(&lm_block_##name, true, rows, outs, n, x, weight, bias, y, y_row);                                 \
    else                                                                                                        \
      few_of(&lm_block_##name, false, rows, outs, n, x, weight, bias, y, y_row);                                \
  }                                                                                                             \
  static void many_##name(int64_t rows, int outs, int64_t n, const lm_block_steps *x, const uint8_t *weight,    \
                          const float *bias, float *y, int64_t y_row, void *scratch) {                          \
    if (VNNI)                                                                                                   \
      many_of(&lm_block_##name, true, rows, outs, n, x, weight, bias, y, y_row, scratch);                       \
    else                                                                                                        \
      many_of(&lm_block_##name, false, rows, outs, n, x, weight, bias, y, y_row, scratch);                      \
  }
LM_BLOCK_KINDS(X)
#undef X

const struct lm_block_loops LM_ISA_NAME(lm_block_loops) = {
    .round = round_row,
#define X(name) few_##name,
    .few = {LM_BLOCK_KINDS(X)},
#undef X
#define X(name) many_##name,
    .many = {LM_BLOCK_KINDS(X)},
#undef X
    .few_rows = 2 * FEW,
    .panel = LM_PACK,
};
