/* Computes random bits by Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
 * Block b of a seed is four 32-bit words that depend on nothing else, so any thread of any device can compute any
 * element of a draw. For C and CUDA; includes nothing from src/.
 *
 * An element takes these words (b counts from the draw's offset):
 *   32-bit results  element i: block b = i / 4, word i % 4
 *   64-bit results  element i: block b = i / 2, words 2 * (i % 2) and 2 * (i % 2) + 1
 *   normals         in pairs from two uniforms, by Box and Muller: float elements 2k, 2k + 1 from
 *                   words 2k % 4 and 2k % 4 + 1 of block 2k / 4; double elements 2k, 2k + 1 from the
 *                   two 64-bit results of block k */
#pragma once

#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define LM_DEVICE_CODE __host__ __device__ static inline
#else
#define LM_DEVICE_CODE static inline
#endif

typedef struct lm_philox_block {
  uint32_t word[4];
} lm_philox_block;

LM_DEVICE_CODE lm_philox_block lm_philox(uint64_t seed, uint64_t block) {
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u; /* the golden ratio's bits */
    k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
  }
  lm_philox_block out;
  out.word[0] = c0, out.word[1] = c1, out.word[2] = c2, out.word[3] = c3;
  return out;
}

/* Random blocks of a seed, as they are counted above. */
typedef struct lm_blocks_drawn {
  uint64_t seed, offset;
  const uint64_t *extra; /* NULL, or device memory: added to the offset, so that a captured draw differs each time */
} lm_blocks_drawn;

LM_DEVICE_CODE lm_philox_block lm_block_of(const lm_blocks_drawn *d, int64_t block) {
  return lm_philox(d->seed, d->offset + (d->extra ? *d->extra : 0) + (uint64_t)block);
}

/* Returns words 2 * half and 2 * half + 1 as one; the first is the low one. */
LM_DEVICE_CODE uint64_t lm_philox_u64(lm_philox_block b, int half) {
  return (uint64_t)b.word[2 * half + 1] << 32 | b.word[2 * half];
}

/* Returns the upper 24 bits over 2^24: in [0, 1), every value exact in a float. */
LM_DEVICE_CODE float lm_uniform_f32(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

/* Returns the upper 53 bits over 2^53: in [0, 1), every value exact in a double. */
LM_DEVICE_CODE double lm_uniform_f64(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

/* CUDA's fma is explicit, as the CPU's compiler makes it of the same sums, so that numbers agree to the bit. */
#ifdef __cplusplus
#define LM_FMA(a, b, c) fma(a, b, c)
#define LM_FMAF(a, b, c) fmaf(a, b, c)
#else
#define LM_FMA(a, b, c) ((a) * (b) + (c))
#define LM_FMAF(a, b, c) ((a) * (b) + (c))
#endif

/* Return a number in [from, to): rounding may reach `to`, which becomes `from`. */
LM_DEVICE_CODE float lm_between_f32(uint32_t bits, float from, float to) {
  float v = LM_FMAF(to - from, lm_uniform_f32(bits), from);
  return v < to ? v : from;
}
LM_DEVICE_CODE double lm_between_f64(uint64_t bits, double from, double to) {
  double v = LM_FMA(to - from, lm_uniform_f64(bits), from);
  return v < to ? v : from;
}

/* Return -ln(u) / rate with u in (0, 1], where u = 1 yields the least step instead of 0, so that callers may divide by
 * it. */
LM_DEVICE_CODE float lm_exponential_f32(uint32_t bits, float rate) {
  float u = (float)((bits >> 8) + 1) * 0x1p-24f, v = -logf(u);
  return (v > 0x1p-25f ? v : 0x1p-25f) / rate;
}
LM_DEVICE_CODE double lm_exponential_f64(uint64_t bits, double rate) {
  double u = (double)((bits >> 11) + 1) * 0x1p-53, v = -log(u);
  return (v > 0x1p-54 ? v : 0x1p-54) / rate;
}

/* Return median + sigma tan(pi (u - 1/2)), with u in the middle of its step, so that it is finite. */
LM_DEVICE_CODE double lm_cauchy_f64(uint64_t bits, double median, double sigma) {
  double angle = 3.14159265358979323846 * (((double)(bits >> 12) + 0.5) * 0x1p-52 - 0.5);
  return median + sigma * (sin(angle) / cos(angle));
}
LM_DEVICE_CODE float lm_cauchy_f32(uint32_t bits, float median, float sigma) {
  float angle = 3.14159265358979323846f * (((float)(bits >> 9) + 0.5f) * 0x1p-23f - 0.5f);
  return median + sigma * (sinf(angle) / cosf(angle));
}

/* Returns the number of trials of probability p to the first success: ceil(ln(u) / ln(1 - p)), at least 1; p in (0,
 * 1). */
LM_DEVICE_CODE double lm_geometric(uint64_t bits, double p) {
  double u = (double)((bits >> 11) + 1) * 0x1p-53, trials = ceil(log(u) / log1p(-p));
  return trials > 1 ? trials : 1;
}

/* Compute two independent standard normals, sqrt(-2 ln u) * (cos, sin)(2 pi v), by Box and Muller, with u in (0, 1] and
 * v in [0, 1). u is the uniform above plus one step, so that ln never sees 0: the largest float normal is sqrt(48 ln 2)
 * = 5.77, the largest double one sqrt(106 ln 2) = 8.57. */
LM_DEVICE_CODE void lm_normal_f32(uint32_t bits_u, uint32_t bits_v, float out[2]) {
  float u = (float)((bits_u >> 8) + 1) * 0x1p-24f, v = (float)(bits_v >> 8) * 0x1p-24f;
  float radius = sqrtf(-2.0f * logf(u)), angle = 6.2831853071795864769f * v;
  out[0] = radius * cosf(angle);
  out[1] = radius * sinf(angle);
}

LM_DEVICE_CODE void lm_normal_f64(uint64_t bits_u, uint64_t bits_v, double out[2]) {
  double u = (double)((bits_u >> 11) + 1) * 0x1p-53, v = (double)(bits_v >> 11) * 0x1p-53;
  double radius = sqrt(-2.0 * log(u)), angle = 6.2831853071795864769 * v;
  out[0] = radius * cos(angle);
  out[1] = radius * sin(angle);
}

/* Returns an integer in [0, range), range > 0, from 64 bits: the high half of bits * range (Lemire, "Fast Random
 * Integer Generation in an Interval", 2019, without rejection: no value is favored by more than range / 2^64). */
LM_DEVICE_CODE uint64_t lm_uniform_below(uint64_t bits, uint64_t range) {
  uint64_t bl = (uint32_t)bits, bh = bits >> 32, rl = (uint32_t)range, rh = range >> 32;
  uint64_t low = bl * rl, mid1 = bh * rl + (low >> 32), mid2 = bl * rh + (uint32_t)mid1;
  return bh * rh + (mid1 >> 32) + (mid2 >> 32);
}
