#include "backend/cpu/isa/int8_product.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/int8_lanes.h"

/* Numbers of x have 16 bits; one instruction multiplies pairs of them and adds the two products, so that a register
 * holds twice as many numbers as sums. Rows of weight are prefetched AHEAD groups before they are needed: the processor
 * itself finds such short runs too late. */
enum { LANES = 2 * LM_PACK, OUTS = 4, AHEAD = 2, STEPS = 32767 };
LM_INLINE lm_int16_pack steps_at(const int16_t *from) {
  lm_int16_pack p;
  memcpy(&p, from, sizeof p);
  return p;
}

#if defined(__AVX512BW__)
LM_INLINE lm_int16_pack widen(const int8_t *from) {
  return (lm_int16_pack)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)from));
}
#elif defined(__AVX2__)
LM_INLINE lm_int16_pack widen(const int8_t *from) {
  return (lm_int16_pack)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)from));
}
#elif defined(__SSE4_1__)
LM_INLINE lm_int16_pack widen(const int8_t *from) {
  return (lm_int16_pack)_mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)from));
}
#else
LM_INLINE lm_int16_pack widen(const int8_t *from) {
  lm_int16_pack wide;
  for (int l = 0; l < LANES; l++) wide[l] = from[l];
  return wide;
}
#endif

static bool round_row(int64_t k, const float *x, const lm_int8_steps *to, int64_t r) {
  int16_t *steps = to->steps + r * to->row;
  float *scale = to->scale + r * (to->row / LM_INT8_BLOCK);
  for (int64_t i = 0; i < k; i += LM_INT8_BLOCK) {
    int n = k - i < LM_INT8_BLOCK ? (int)(k - i) : LM_INT8_BLOCK;
    float largest = 0, check = 0;
    for (int l = 0; l < n; l++) {
      float size = fabsf(x[i + l]);
      largest = size > largest ? size : largest;
      check += x[i + l] * 0;
    }
    float by = largest > 0 ? STEPS / largest : 0;
    if (check != 0 || !(by < INFINITY)) return false;
    scale[i / LM_INT8_BLOCK] = largest / STEPS;
    for (int l = 0; l < n; l++) steps[i + l] = (int16_t)rintf(x[i + l] * by);
    for (int l = n; l < LM_INT8_BLOCK; l++) steps[i + l] = 0;
  }
  return true;
}

/* Sums products of `rows` rows of x, from `first` on, and `outs` rows of weight; both are constants in each call. */
LM_INLINE void multiply_int8_rows(int rows, int outs, int64_t k, const lm_int8_steps *x, int64_t first,
                                  const int8_t *weight, float (*sum)[LM_INT8_ROWS]) {
  const int16_t *steps = x->steps + first * x->row;
  const int64_t blocks = x->row / LM_INT8_BLOCK;
  const float *scale = x->scale + first * blocks;
  lm_float_pack part[OUTS][LM_INT8_ROWS]; /* set to 0 singly, as needed: whole arrays would take memset */
  for (int j = 0; j < outs; j++) {
    for (int r = 0; r < rows; r++) part[j][r] = (lm_float_pack){0};
  }
  int64_t i = 0;
  for (; i + LM_INT8_BLOCK <= k; i += LM_INT8_BLOCK) {
    lm_int32_pack whole[OUTS][LM_INT8_ROWS];
    if (outs == 1) __builtin_prefetch(weight + i + lm_run_ahead);
    for (int j = 0; outs > 1 && j < outs; j++) __builtin_prefetch(weight + (j + AHEAD * outs) * k + i);
    for (int l = 0; l < LM_INT8_BLOCK; l += LANES) {
      for (int j = 0; j < outs; j++) {
        lm_int16_pack w = widen(weight + j * k + i + l);
        for (int r = 0; r < rows; r++) {
          lm_int32_pack sums = lm_pack_pairs(steps_at(steps + r * x->row + i + l), w);
          whole[j][r] = l == 0 ? sums : whole[j][r] + sums;
        }
      }
    }
    for (int r = 0; r < rows; r++) {
      float by = scale[r * blocks + i / LM_INT8_BLOCK];
      for (int j = 0; j < outs; j++) part[j][r] += by * __builtin_convertvector(whole[j][r], lm_float_pack);
    }
  }
  for (int j = 0; j < outs; j++) {
    for (int r = 0; r < rows; r++) {
      float total = lm_pack_sum(part[j][r]);
      int32_t rest = 0;
      for (int64_t at = i; at < k; at++) rest += steps[r * x->row + at] * weight[j * k + at];
      sum[j][r] = i < k ? total + scale[r * blocks + i / LM_INT8_BLOCK] * (float)rest : total;
    }
  }
}

LM_INLINE void products_by(int rows, int outs, int64_t all, int64_t k, const lm_int8_steps *x, int64_t first,
                           const int8_t *weight, const float *scale, const float *bias, float *y, int64_t y_row) {
  float sum[OUTS][LM_INT8_ROWS];
  for (int64_t j = 0; j < all;) {
    int n = j + outs <= all ? outs : 1;
    if (n == outs) {
      multiply_int8_rows(rows, outs, k, x, first, weight + j * k, sum);
    } else {
      multiply_int8_rows(rows, 1, k, x, first, weight + j * k, sum);
    }
    for (int s = 0; s < n; s++, j++) {
      for (int r = 0; r < rows; r++) y[r * y_row + j] = sum[s][r] * scale[j] + (bias ? bias[j] : 0);
    }
  }
}

static void products(int rows, int64_t outs, int64_t k, const lm_int8_steps *x, int64_t first, const int8_t *weight,
                     const float *scale, const float *bias, float *y, int64_t y_row) {
  switch (rows) {
    case 1:
      if (k < lm_short_run)
        products_by(1, 1, outs, k, x, first, weight, scale, bias, y, y_row);
      else
        products_by(1, OUTS, outs, k, x, first, weight, scale, bias, y, y_row);
      break;
    case 2: products_by(2, 2, outs, k, x, first, weight, scale, bias, y, y_row); break;
    case 3: products_by(3, 1, outs, k, x, first, weight, scale, bias, y, y_row); break;
    default: products_by(LM_INT8_ROWS, 1, outs, k, x, first, weight, scale, bias, y, y_row);
  }
}

static void expand(int64_t outs, int64_t k, const int8_t *weight, const float *scale, float *out) {
  for (int64_t j = 0; j < outs; j++, weight += k, out += k) {
    float by = scale[j];
    LM_INDEPENDENT
    for (int64_t i = 0; i < k; i++) out[i] = by * (float)weight[i];
  }
}

const struct lm_int8_loops LM_ISA_NAME(lm_int8_loops) = {.round = round_row, .products = products, .expand = expand};
