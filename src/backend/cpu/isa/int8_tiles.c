#include "backend/cpu/isa/int8_tiles.h"

#include <math.h>

#include "backend/cpu/isa/int8_lanes.h"

enum { PACKS = 2, FEW = 4 };

LM_INLINE lm_int32_pack pack_at(const void *from) {
  lm_int32_pack p;
  memcpy(&p, from, sizeof p);
  return p;
}

LM_INLINE lm_int32_pack four_bytes(const uint8_t *from) {
  int32_t v;
  memcpy(&v, from, sizeof v);
  return (lm_int32_pack){0} + v;
}

/* Adds products of four bytes, by the one instruction of CPUs with VNNI. It is written in assembler since this file is
 * compiled for CPUs without it, too. */
LM_INLINE lm_int32_pack add_byte_products(lm_int32_pack sum, lm_int32_pack a, lm_int32_pack b) {
#if defined(__AVX512BW__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  (void)a, (void)b;
#endif
  return sum;
}

/* Sums a tile of `rows` rows and PACKS packs of columns; rows and vnni are constants in each call. Without VNNI, even
 * and odd bytes become integers of 16 bits. */
LM_INLINE void tile_of(int rows, bool vnni, int64_t steps, const uint8_t *a, int64_t row, const int8_t *b, int32_t *c) {
  lm_int32_pack sum[LM_BYTE_ROWS][PACKS];
  for (int r = 0; r < rows; r++)
    for (int p = 0; p < PACKS; p++) sum[r][p] = (lm_int32_pack){0};
  for (int64_t k = 0; k < steps; k++, a += LM_BYTE_STEP, b += LM_BYTE_COLUMNS * LM_BYTE_STEP) {
    lm_int32_pack w[PACKS];
    lm_int16_pack even[PACKS], odd[PACKS];
    for (int p = 0; p < PACKS; p++) {
      w[p] = pack_at(b + (int64_t)p * (int64_t)sizeof w[p]);
      even[p] = (lm_int16_pack)w[p] << 8 >> 8;
      odd[p] = (lm_int16_pack)w[p] >> 8;
    }
    for (int r = 0; r < rows; r++) {
      const lm_int32_pack x = four_bytes(a + r * row);
      const lm_int16_pack x_even = (lm_int16_pack)(x & 0x00ff00ff), x_odd = (lm_int16_pack)(x >> 8 & 0x00ff00ff);
      for (int p = 0; p < PACKS; p++)
        sum[r][p] = vnni ? add_byte_products(sum[r][p], x, w[p])
                         : sum[r][p] + lm_pack_pairs(x_even, even[p]) + lm_pack_pairs(x_odd, odd[p]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int p = 0; p < PACKS; p++)
      memcpy(c + r * LM_BYTE_COLUMNS + (int64_t)p * LM_PACK, &sum[r][p], sizeof sum[r][p]);
}

LM_INLINE void tile_by(bool vnni, int rows, int64_t steps, const uint8_t *a, int64_t row, const int8_t *b, int32_t *c) {
  for (int j = 0; j < LM_BYTE_COLUMNS; j += PACKS * LM_PACK) {
    const int8_t *from = b + (int64_t)j * LM_BYTE_STEP;
    int r = 0;
    if (vnni && rows == LM_BYTE_ROWS) {
      tile_of(LM_BYTE_ROWS, vnni, steps, a, row, from, c + j);
      continue;
    }
    for (; r + FEW <= rows; r += FEW)
      tile_of(FEW, vnni, steps, a + r * row, row, from, c + (int64_t)r * LM_BYTE_COLUMNS + j);
    for (; r < rows; r++) tile_of(1, vnni, steps, a + r * row, row, from, c + (int64_t)r * LM_BYTE_COLUMNS + j);
  }
}

static void int8_tile(int rows, int64_t steps, const uint8_t *a, int64_t row, const int8_t *b, int32_t *c) {
#if defined(__AVX512BW__)
  if (__builtin_cpu_supports("avx512vnni")) {
    tile_by(true, rows, steps, a, row, b, c);
    return;
  }
#endif
  tile_by(false, rows, steps, a, row, b, c);
}

static void depthwise(int64_t channels, int64_t taps, const uint8_t *const *x, uint8_t flip, const int8_t *w,
                      const int32_t *zero, int32_t *sum) {
  for (int64_t c = 0; c < channels; c++) sum[c] = 0;
  for (int64_t t = 0; t < taps; t++, w += channels) {
    const uint8_t *from = x[t];
    LM_INDEPENDENT
    for (int64_t c = 0; c < channels; c++) sum[c] += (from[c] ^ flip) * (w[c] - zero[c]);
  }
}

/* Returns the byte of v, rounded, plus f->zero. */
LM_INLINE uint8_t byte_of(const lm_byte_finish *f, float v) {
  const bool is_signed = f->dtype == LM_I8;
  const float least = (float)((is_signed ? INT8_MIN : 0) - f->zero);
  const float most = (float)((is_signed ? INT8_MAX : UINT8_MAX) - f->zero);
  v = v > least ? v : least; /* least also for NaN */
  v = v < most ? v : most;
  return (uint8_t)((int32_t)rintf(v) + f->zero);
}

/* Returns a sum of `finish`; unsigned, since it may be larger than an int32. */
LM_INLINE int32_t sum_of(const lm_byte_finish *f, int64_t c, int32_t sum, int32_t total, int32_t zero) {
  return (int32_t)((uint32_t)sum + (uint32_t)f->base[c] - (uint32_t)total * (uint32_t)zero);
}

static void finish(const lm_byte_finish *of, int64_t first, int64_t n, const int32_t *sum, int32_t total,
                   const int32_t *zeros, void *out) {
  const lm_byte_finish f = *of;
  const int32_t *zero = zeros + first;
  uint8_t *bytes = out;
  if (f.dtype == LM_U8 || f.dtype == LM_I8) {
    LM_INDEPENDENT
    for (int64_t j = 0; j < n; j++)
      bytes[j] = byte_of(&f, (float)sum_of(&f, first + j, sum[j], total, zero[j]) * f.scale[first + j]);
  } else if (f.dtype == LM_I32) {
    for (int64_t j = 0; j < n; j++) ((int32_t *)out)[j] = sum_of(&f, first + j, sum[j], total, zero[j]);
  } else {
    for (int64_t j = 0; j < n; j++)
      ((float *)out)[j] = (float)sum_of(&f, first + j, sum[j], total, zero[j]) * f.scale[first + j];
  }
}

static void quantize(const lm_byte_finish *of, float scale, const float *x, int64_t n, uint8_t *out) {
  const lm_byte_finish f = *of;
  LM_INDEPENDENT
  for (int64_t i = 0; i < n; i++) out[i] = byte_of(&f, x[i] / scale);
}

LM_INLINE float float_of(uint8_t byte, bool is_signed) { return is_signed ? (float)(int8_t)byte : (float)byte; }

static void add_int8(const lm_byte_finish *of, const uint8_t *x, bool x_signed, const uint8_t *other, bool other_signed,
                     const float *scale, float shift, int64_t n, uint8_t *out) {
  const lm_byte_finish f = *of;
  const float a = scale[0], b = scale[1];
  LM_INDEPENDENT
  for (int64_t i = 0; i < n; i++)
    out[i] = byte_of(&f, a * float_of(x[i], x_signed) + (b * float_of(other[i], other_signed) + shift));
}

static void dequantize(bool is_signed, const uint8_t *x, int64_t n, int32_t zero, float scale, float *out) {
  LM_INDEPENDENT
  for (int64_t i = 0; i < n; i++) out[i] = (float)((is_signed ? (int32_t)(int8_t)x[i] : x[i]) - zero) * scale;
}

const struct lm_byte_loops LM_ISA_NAME(lm_byte_loops) = {.tile = int8_tile,
                                                         .depthwise = depthwise,
                                                         .finish = finish,
                                                         .quantize = quantize,
                                                         .add = add_int8,
                                                         .dequantize = dequantize};
