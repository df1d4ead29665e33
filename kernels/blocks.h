/* Reads blocks of quantized numbers; block_kinds.h, written by the build, has the kinds and explains their fields in
 * lua/luminary/block_kinds.lua. For C and CUDA. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "half_float.h"

/* Forms of scales. HALF: a half; HALF_MINIMUM: a half, and one that is added; SIX_BITS: two halves, of scales and
 * minima, that multiply numbers of 6 bits; NIBBLES: of 4 bits; SIGNED_BYTES: a half behind a byte for each group;
 * SIGNED_SIX_BITS and SPLIT_SIX_BITS: a half times 6 bits less 32; EXPONENT: a byte, the exponent of half the scale. */
typedef enum lm_block_form {
  LM_BLOCK_HALF,
  LM_BLOCK_HALF_MINIMUM,
  LM_BLOCK_SIX_BITS,
  LM_BLOCK_NIBBLES,
  LM_BLOCK_SIGNED_BYTES,
  LM_BLOCK_SIGNED_SIX_BITS,
  LM_BLOCK_SPLIT_SIX_BITS,
  LM_BLOCK_EXPONENT,
} lm_block_form;

typedef struct lm_block_bits {
  int at, span, width;
} lm_block_bits;

typedef struct lm_block_kind {
  const char *name;
  int bytes, elements, group, zero, flip;
  lm_block_form form;
  lm_block_bits low, high;
  uint64_t table[2]; /* 16 numbers, the first lowest; 0 for none */
} lm_block_kind;

/* Kinds are types in kernels; the compiler knows what of() returns. */
#if defined(__CUDACC__) || defined(LM_HOST_KERNELS)
#define LM_BLOCK_INLINE LM_DEVICE
#define LM_BLOCK_KIND(name, ...)                                            \
  struct lm_block_##name {                                                  \
    LM_DEVICE static constexpr lm_block_kind of() { return {__VA_ARGS__}; } \
  };
#else
#define LM_BLOCK_INLINE static inline __attribute__((always_inline))
#define LM_BLOCK_KIND(name, ...) static const lm_block_kind lm_block_##name = {__VA_ARGS__};
#endif
#include "block_kinds.h"

#define X(name) +1
enum { LM_BLOCK_KINDS_COUNT = LM_BLOCK_KINDS(X) };
#undef X

/* The most groups and elements of a block. */
enum { LM_BLOCK_GROUPS = 16, LM_BLOCK_LONGEST = 256 };

#if !defined(__CUDACC__) && !defined(LM_HOST_KERNELS)
/* Returns a kind by its position in the list. */
static inline const lm_block_kind *lm_block_kind_of(int kind) {
#define X(name) &lm_block_##name,
  static const lm_block_kind *const kinds[] = {LM_BLOCK_KINDS(X)};
#undef X
  return kinds[kind];
}
#endif

LM_BLOCK_INLINE float lm_block_half(const uint8_t *from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(bits));
#elif defined(__F16C__) && !defined(LM_HOST_KERNELS)
  return _cvtsh_ss(bits);
#else
  return lm_from_half(bits);
#endif
}

LM_BLOCK_INLINE float lm_block_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Returns the field of element i. */
LM_BLOCK_INLINE int lm_block_field(const uint8_t *block, lm_block_bits b, int i) {
  const int each = b.span * 8 / b.width, part = i % each;
  return block[b.at + i / each * b.span + part % b.span] >> part / b.span * b.width & ((1 << b.width) - 1);
}

/* Returns number q of the kind's table. */
LM_BLOCK_INLINE int lm_block_entry(const lm_block_kind *k, int q) {
  return (int)((q < 8 ? k->table[0] : k->table[1]) >> q % 8 * 8 & 0xff);
}

/* Returns the integer of element i, less zero. */
LM_BLOCK_INLINE int lm_block_integer(const lm_block_kind *k, const uint8_t *block, int i) {
  int q = lm_block_field(block, k->low, i);
  if (k->high.width) q |= lm_block_field(block, k->high, i) << k->low.width;
  return (k->table[0] ? lm_block_entry(k, q) : q ^ k->flip) - k->zero;
}

/* Returns true if numbers of the kind have minima, which lm_block_scales then sets. */
LM_BLOCK_INLINE bool lm_block_has_minima(const lm_block_kind *k) {
  return k->form == LM_BLOCK_HALF_MINIMUM || k->form == LM_BLOCK_SIX_BITS || k->form == LM_BLOCK_NIBBLES;
}

LM_BLOCK_INLINE uint32_t lm_block_word(const uint8_t *from) {
  uint32_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

/* Sets words to the bytes of 8 scales and of 8 minima of 6 bits, whose upper two bits are apart in some. */
LM_BLOCK_INLINE void lm_block_six_bits(const uint8_t *block, uint32_t words[4]) {
  const uint32_t a = lm_block_word(block + 4), b = lm_block_word(block + 8), c = lm_block_word(block + 12);
  words[0] = a & 0x3f3f3f3f;
  words[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
  words[2] = b & 0x3f3f3f3f;
  words[3] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
}

/* Returns the scale of a group of a block, and sets *minimum if the kind has minima. */
LM_BLOCK_INLINE float lm_block_scale(const lm_block_kind *k, const uint8_t *block, int g, float *minimum) {
  switch (k->form) {
    case LM_BLOCK_HALF: return lm_block_half(block);
    case LM_BLOCK_HALF_MINIMUM: *minimum = -lm_block_half(block + 2); return lm_block_half(block);
    case LM_BLOCK_SIX_BITS: {
      const uint8_t *low = block + 4 + g, *high = low - 4; /* groups from 4 on have 4 bits at their place, 2 before */
      const int scale = g < 4 ? low[0] & 63 : (low[4] & 15) | high[0] >> 6 << 4;
      const int least = g < 4 ? low[4] & 63 : low[4] >> 4 | low[0] >> 6 << 4;
      *minimum = lm_block_half(block + 2) * (float)least;
      return lm_block_half(block) * (float)scale;
    }
    case LM_BLOCK_NIBBLES:
      *minimum = lm_block_half(block + 82) * (float)(block[g] >> 4);
      return lm_block_half(block + 80) * (float)(block[g] & 15);
    case LM_BLOCK_SIGNED_BYTES: return lm_block_half(block + 208) * (float)(int8_t)block[192 + g];
    case LM_BLOCK_SIGNED_SIX_BITS: {
      const int low = block[96 + g % 8] >> g / 8 * 4 & 15, high = block[104 + g % 4] >> g / 4 * 2 & 3;
      return lm_block_half(block + 108) * (float)((low | high << 4) - 32);
    }
    case LM_BLOCK_SPLIT_SIX_BITS: {
      const int low = block[4 + g / 2] >> g % 2 * 4 & 15, high = block[2 + g / 4] >> g % 4 * 2 & 3;
      return lm_block_half(block) * (float)((low | high << 4) - 32);
    }
    default: { /* LM_BLOCK_EXPONENT */
      const uint32_t e = block[0];
      return lm_block_float(e > 1 ? (e - 1) << 23 : 0x200000u << e); /* 2^(e - 128) */
    }
  }
}

/* Reads the scale and the minimum of each group of a block. */
LM_BLOCK_INLINE void lm_block_scales(const lm_block_kind *k, const uint8_t *block, float *scale, float *minimum) {
  for (int g = 0; g < k->elements / k->group; g++) scale[g] = lm_block_scale(k, block, g, minimum + g);
}
