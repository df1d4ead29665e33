#include "backend/cpu/isa/int8_product.h"

#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/elem.h"

enum { LANES = 16 };
typedef int8_t int8_pack __attribute__((vector_size(LANES)));
typedef int16_t int16_pack __attribute__((vector_size(LANES * sizeof(int16_t))));
typedef int32_t int32_pack __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef float float_pack __attribute__((vector_size(LANES * sizeof(float))));

/* By a pointer: a pack wider than the registers is no result. */
LM_INLINE void widen(const int8_t *from, float_pack *out) {
#ifdef __AVX512F__
  *out = (float_pack)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#else
  int8_pack narrow;
  memcpy(&narrow, from, sizeof narrow);
  int16_pack wider = __builtin_convertvector(narrow, int16_pack); /* by steps, which GCC has instructions for */
  *out = __builtin_convertvector(__builtin_convertvector(wider, int32_pack), float_pack);
#endif
}

/* Sums of `rows` rows of x and `outs` of weight; both are constants where this is called. */
LM_INLINE void products_of(int rows, int outs, int64_t k, const float *x, const int8_t *weight,
                           float (*sum)[LM_INT8_ROWS]) {
  float_pack part[2][LM_INT8_ROWS] = {0};
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    float_pack w[2];
    for (int j = 0; j < outs; j++) widen(weight + j * k + i, &w[j]);
    for (int r = 0; r < rows; r++) {
      float_pack v;
      memcpy(&v, x + r * k + i, sizeof v);
      for (int j = 0; j < outs; j++) part[j][r] += v * w[j];
    }
  }
  for (int j = 0; j < outs; j++) {
    for (int r = 0; r < rows; r++) {
      float total = 0;
      for (int l = 0; l < LANES; l++) total += part[j][r][l];
      for (int64_t at = i; at < k; at++) total += x[r * k + at] * (float)weight[j * k + at];
      sum[j][r] = total;
    }
  }
}

LM_INLINE void products_by(int rows, int64_t outs, int64_t k, const float *x, const int8_t *weight, const float *scale,
                           const float *bias, float *y, int64_t y_row) {
  float sum[2][LM_INT8_ROWS];
  for (int64_t j = 0; j < outs; j += 2) {
    int two = j + 1 < outs;
    if (two) {
      products_of(rows, 2, k, x, weight + j * k, sum);
    } else {
      products_of(rows, 1, k, x, weight + j * k, sum);
    }
    for (int s = 0; s <= two; s++) {
      for (int r = 0; r < rows; r++) y[r * y_row + j + s] = sum[s][r] * scale[j + s] + (bias ? bias[j + s] : 0);
    }
  }
}

static void products(int rows, int64_t outs, int64_t k, const float *x, const int8_t *weight, const float *scale,
                     const float *bias, float *y, int64_t y_row) {
  switch (rows) {
    case 1: products_by(1, outs, k, x, weight, scale, bias, y, y_row); break;
    case 2: products_by(2, outs, k, x, weight, scale, bias, y, y_row); break;
    case 3: products_by(3, outs, k, x, weight, scale, bias, y, y_row); break;
    default: products_by(LM_INT8_ROWS, outs, k, x, weight, scale, bias, y, y_row);
  }
}

static void expand(int64_t outs, int64_t k, const int8_t *weight, const float *scale, float *out) {
  for (int64_t j = 0; j < outs; j++, weight += k, out += k) {
    float by = scale[j];
    LM_INDEPENDENT
    for (int64_t i = 0; i < k; i++) out[i] = by * (float)weight[i];
  }
}

const struct lm_int8_loops LM_ISA_NAME(lm_int8_loops) = {.products = products, .expand = expand};
