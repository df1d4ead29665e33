/* Converts float32 to half precision (float16) and bfloat16 and back, on every device and without branches, so that
 * loops vectorize. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef union lm_float_bits {
  float value;
  uint32_t bits;
} lm_float_bits;

/* Converts a half; the exponent is rebased by a multiplication, which makes subnormals right too. */
static inline __attribute__((always_inline)) float lm_from_half(uint16_t h) {
  uint32_t magnitude = h & 0x7fffu;
  lm_float_bits scaled = {.bits = magnitude << 13};
  scaled.value *= 0x1p112f;
  scaled.bits |= magnitude >= 0x7c00 ? 0x7f800000u : 0;
  scaled.bits |= (uint32_t)(h & 0x8000u) << 16;
  return scaled.value;
}

/* Rounds to nearest even. With e the exponent of |f| (at least -14, where half precision's subnormals begin), the sum
 * |f| + 2^(e + 13) is a float whose last bit is 2^(e - 10), half precision's at |f|: the float unit rounds. */
static inline __attribute__((always_inline)) uint16_t lm_to_half(float f) {
  lm_float_bits in = {f}, magnitude = {.bits = in.bits & 0x7fffffffu};
  uint32_t exponent = magnitude.bits & 0x7f800000u, smallest = 113u << 23;
  lm_float_bits spacer = {.bits = (exponent < smallest ? smallest : exponent) + (13u << 23)};
  bool nan = magnitude.bits > 0x7f800000u, large = magnitude.bits >= 0x477ff000u; /* 65520 and more round up */
  lm_float_bits sum = {large ? 0.5f : magnitude.value + spacer.value};
  uint32_t mantissa = sum.bits & 0x7fffffu, steps = (spacer.bits - (126u << 23)) >> 23; /* e + 14 */
  uint32_t finite = mantissa + (steps << 10); /* a normal number's mantissa still has its leading 1 */
  uint32_t result = nan ? 0x7e00u : large ? 0x7c00u : finite;
  return (uint16_t)(result | (in.bits >> 16 & 0x8000u));
}

static inline __attribute__((always_inline)) float lm_from_bf16(uint16_t h) {
  lm_float_bits v = {.bits = (uint32_t)h << 16};
  return v.value;
}

static inline __attribute__((always_inline)) uint16_t lm_to_bf16(float f) {
  lm_float_bits v = {f};
  uint32_t rounded = (v.bits + 0x7fffu + (v.bits >> 16 & 1)) >> 16, quiet = v.bits >> 16 | 0x40u;
  return (uint16_t)((v.bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
