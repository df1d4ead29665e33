#include "backend/cpu/isa/depthwise.h"

#include "backend/cpu/isa/lanes.h"

/* PIXELS pixels are computed at a time, so that their sums and the weights of a row of taps fill the registers.
 * Gradients of weights take VECTORS vectors of channels at a time. */
enum { PIXELS = 7, VECTORS = 2, MAX_TAPS = 7 };

typedef lm_float_pack vec;

/* Loads a vector whose lane i is lane i ^ lane in memory. */
LM_INLINE vec load_lanes(const float *from, const bool grouped, int64_t lane) {
  const vec p = lm_pack_load(from);
  if (!grouped || lane == 0) return p;
#if defined(__AVX512F__)
  const __m512i own = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (vec)_mm512_permutexvar_ps(_mm512_xor_si512(own, _mm512_set1_epi32((int)lane)), (__m512)p);
#elif defined(__AVX2__)
  const __m256i own = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm256_permutevar8x32_ps((__m256)p, _mm256_xor_si256(own, _mm256_set1_epi32((int)lane)));
#else
  if (lane == 1) return __builtin_shufflevector(p, p, 1, 0, 3, 2);
  return lane == 2 ? __builtin_shufflevector(p, p, 2, 3, 0, 1) : __builtin_shufflevector(p, p, 3, 2, 1, 0);
#endif
}

/* Returns true if column `at` is inside the image; always, unless the pixels are at an `edge`. */
LM_INLINE bool is_inside(const bool edge, const lm_depthwise_pixels *p, int64_t at) {
  return !edge || (uint64_t)at < (uint64_t)p->width;
}

/* Sums pixels, the first with its taps from column `left` on, that are as far apart as taps are, so that each is loaded
 * once for all taps of a row. */
LM_INLINE void sum_rows(const int pixels, const int taps, const bool edge, const bool grouped,
                        const lm_depthwise_pixels *p, int64_t left, const float *from, int64_t c, vec *sum) {
  const int64_t step = p->from_step;
  for (int64_t r = 0; r < p->rows; r++) {
    const int64_t lane = r & (p->group - 1);
    const float *x = from + p->offset[r] + c, *weight = p->weight[r] + c;
    vec w[MAX_TAPS];
    LM_UNROLL for (int t = 0; t < taps; t++) w[t] = lm_pack_load(weight + t * p->weight_step);
    LM_UNROLL for (int q = 0; q < pixels + taps - 1; q++, x += step) {
      if (!is_inside(edge, p, left + q * p->tap_columns)) continue;
      const vec y = load_lanes(x, grouped, lane);
      LM_UNROLL for (int t = 0; t < taps; t++) if (q - t >= 0 && q - t < pixels) sum[q - t] += y * w[t];
    }
  }
}

/* Sums any pixels and taps. */
LM_INLINE void sum_taps(const int pixels, const bool edge, const bool grouped, const lm_depthwise_pixels *p,
                        int64_t left, const float *from, int64_t c, vec *sum) {
  const int64_t step = p->from_step;
  for (int64_t r = 0; r < p->rows; r++) {
    const int64_t lane = r & (p->group - 1);
    const float *x = from + p->offset[r] + c, *weight = p->weight[r] + c;
    for (int64_t t = 0; t < p->taps; t++, x += p->tap_step, weight += p->weight_step) {
      const vec w = lm_pack_load(weight);
      const int64_t column = left + t * p->tap_columns;
      LM_UNROLL for (int i = 0; i < pixels; i++) if (is_inside(edge, p, column + i * p->stride)) sum[i] +=
          load_lanes(x + i * step, grouped, lane) * w;
    }
  }
}

/* Prefetches the lines below: all pixels that follow these, including those that a stride skips here. */
LM_INLINE void prefetch(const int pixels, const lm_depthwise_pixels *p, const float *from, const float *to) {
  const char *next = (const char *)from + p->next * (int64_t)sizeof(float);
  const char *next_to = (const char *)to + p->next_to * (int64_t)sizeof(float);
  const int64_t step = p->next_pixel * (int64_t)sizeof(float), to_step = p->to_step * (int64_t)sizeof(float);
  for (int64_t line = 0; line < p->next_lines; line++, next += p->next_step * (int64_t)sizeof(float))
    for (int64_t i = 0; i < p->stride; i++)
      LM_UNROLL for (int j = 0; j < pixels; j++) __builtin_prefetch(next + (i * pixels + j) * step, 0, 2);
  if (p->next_to == 0) return;
  LM_UNROLL for (int i = 0; i < pixels; i++) __builtin_prefetch(next_to + i * to_step, 1, 2);
}

/* Computes pixels; taps: 0 for any number. */
LM_INLINE void put_vectors(const int pixels, const int taps, const bool edge, const bool grouped,
                           const lm_depthwise_pixels *p, int64_t left, const float *from, float *to) {
  for (int64_t at = 0; at < p->channels; at += LM_PACK) {
    const int64_t c = at + LM_PACK > p->channels ? p->channels - LM_PACK : at; /* the last vector overlaps another */
    vec sum[PIXELS];
    prefetch(pixels, p, from + c, to + c);
    LM_UNROLL for (int i = 0; i < pixels; i++) sum[i] = p->bias ? lm_pack_load(p->bias + c) : (vec){0};
    if (taps > 0)
      sum_rows(pixels, taps, edge, grouped, p, left, from, c, sum);
    else
      sum_taps(pixels, edge, grouped, p, left, from, c, sum);
    LM_UNROLL for (int i = 0; i < pixels; i++) lm_pack_store(to + i * p->to_step + c, sum[i]);
  }
}

/* Computes pixels of fewer channels than a vector has. */
static void put_channels(const lm_depthwise_pixels *p) {
  for (int64_t i = 0; i < p->pixels; i++)
    for (int64_t c = 0; c < p->channels; c++) {
      float sum = p->bias ? p->bias[c] : 0;
      for (int64_t r = 0; r < p->rows; r++)
        for (int64_t t = 0; t < p->taps; t++)
          if (is_inside(true, p, p->left + i * p->stride + t * p->tap_columns))
            sum = fmaf(p->from[i * p->from_step + p->offset[r] + t * p->tap_step + (c ^ (r & (p->group - 1)))],
                       p->weight[r][t * p->weight_step + c], sum);
      p->to[i * p->to_step + c] = sum;
    }
}

/* Computes `pixels` pixels from number i on. */
LM_INLINE void put_pixels(const int pixels, const int taps, const bool grouped, const lm_depthwise_pixels *p,
                          int64_t i) {
  const float *from = p->from + i * p->from_step;
  float *to = p->to + i * p->to_step;
  const int64_t left = p->left + i * p->stride, right = left + (pixels - 1) * p->stride;
  const int64_t span = (p->taps - 1) * p->tap_columns; /* negative for the gradient of x */
  if (lm_min(left, left + span) < 0 || lm_max(right, right + span) >= p->width)
    put_vectors(pixels, taps, true, grouped, p, left, from, to);
  else
    put_vectors(pixels, taps, false, grouped, p, left, from, to);
}

LM_INLINE void put_all(const bool grouped, const lm_depthwise_pixels *p) {
  const int64_t taps = p->from_step == p->tap_step ? p->taps : 0;
  int64_t i = 0;
  for (; i + PIXELS <= p->pixels; i += PIXELS) switch (taps) {
      case 3: put_pixels(PIXELS, 3, grouped, p, i); break;
      case 5: put_pixels(PIXELS, 5, grouped, p, i); break;
      case 7: put_pixels(PIXELS, 7, grouped, p, i); break;
      default: put_pixels(PIXELS, 0, grouped, p, i); break;
    }
  for (; i + 2 <= p->pixels; i += 2) put_pixels(2, 0, grouped, p, i);
  if (i < p->pixels) put_pixels(1, 0, grouped, p, i);
}

static void depthwise_forward(const lm_depthwise_pixels *p) {
  if (p->channels < LM_PACK)
    put_channels(p);
  else if (p->group > 1)
    put_all(true, p);
  else
    put_all(false, p);
}

/* Adds to the gradients of taps' weights. skips: true if a stride skips pixels, which are prefetched too. */
LM_INLINE void add_taps(const int taps, const int vectors, const bool skips, const bool grouped,
                        const lm_depthwise_pixels *p, int64_t row, int64_t tap, int64_t c) {
  vec sum[3][VECTORS];
  const float *x = p->from + p->offset[row] + tap * p->tap_step + c, *y = p->to + c;
  float *w = p->weight[row] + tap * p->weight_step + c;
  const int64_t tap_step = p->tap_step, step = p->from_step, to_step = p->to_step, lane = row & (p->group - 1);
  /* A row of taps takes as long as prefetching one of the next lines. */
  const bool below = row != 1, any = tap == 0 && row < 1 + p->next_lines;
  const char *next = (const char *)(below ? p->from + c : y) +
                     (below ? p->next + (row / 2) * p->next_step : p->next_to) * (int64_t)sizeof(float) * any;
  const int64_t ahead = (below ? step : to_step) * (int64_t)sizeof(float);
  const int64_t skipped = (below ? p->next_pixel : 0) * (int64_t)sizeof(float);
  LM_UNROLL for (int t = 0; t < taps; t++) LM_UNROLL for (int v = 0; v < vectors; v++) sum[t][v] =
      lm_pack_load(w + t * p->weight_step + v * LM_PACK);
  for (int64_t i = 0; i < p->pixels; i++, x += step, y += to_step) {
    vec g[VECTORS];
    LM_UNROLL for (int v = 0; v < vectors; v++) {
      __builtin_prefetch(next + v * LM_PACK * (int)sizeof(float), 0, 2);
      if (skips) __builtin_prefetch(next + skipped + v * LM_PACK * (int)sizeof(float), 0, 2);
    }
    next += ahead;
    LM_UNROLL for (int v = 0; v < vectors; v++) g[v] = lm_pack_load(y + v * LM_PACK);
    LM_UNROLL for (int t = 0; t < taps; t++) LM_UNROLL for (int v = 0; v < vectors; v++) sum[t][v] +=
        load_lanes(x + t * tap_step + v * LM_PACK, grouped, lane) * g[v];
  }
  LM_UNROLL for (int t = 0; t < taps; t++) LM_UNROLL for (int v = 0; v < vectors; v++)
      lm_pack_store(w + t * p->weight_step + v * LM_PACK, sum[t][v]);
}

LM_INLINE void add_channels(const int vectors, const bool skips, const bool grouped, const lm_depthwise_pixels *p,
                            int64_t c) {
  for (int64_t row = 0; row < p->rows; row++) {
    int64_t tap = 0;
    for (; tap + 3 <= p->taps; tap += 3) add_taps(3, vectors, skips, grouped, p, row, tap, c);
    if (p->taps - tap == 2) add_taps(2, vectors, skips, grouped, p, row, tap, c);
    if (p->taps - tap == 1) add_taps(1, vectors, skips, grouped, p, row, tap, c);
  }
}

static void weight(const lm_depthwise_pixels *p) {
  int64_t c = 0;
  for (; c + VECTORS * LM_PACK <= p->channels; c += VECTORS * LM_PACK)
    if (p->group > 1)
      add_channels(VECTORS, true, true, p, c);
    else if (p->stride > 1)
      add_channels(VECTORS, true, false, p, c);
    else
      add_channels(VECTORS, false, false, p, c);
  for (; c + LM_PACK <= p->channels; c += LM_PACK) add_channels(1, false, true, p, c);
  for (; c < p->channels; c++)
    for (int64_t r = 0; r < p->rows; r++)
      for (int64_t t = 0; t < p->taps; t++) {
        float *w = p->weight[r] + t * p->weight_step + c;
        for (int64_t i = 0; i < p->pixels; i++)
          *w = fmaf(p->from[i * p->from_step + p->offset[r] + t * p->tap_step + (c ^ (r & (p->group - 1)))],
                    p->to[i * p->to_step + c], *w);
      }
}

const struct lm_depthwise_loops LM_ISA_NAME(lm_depthwise_loops) = {
    .width = LM_PACK, .forward = depthwise_forward, .weight = weight};
