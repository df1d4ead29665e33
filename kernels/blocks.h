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
  const uint8_t *table; /* 16 numbers, or NULL */
} lm_block_kind;

#include "block_kinds.h"

#define X(name) +1
enum { LM_BLOCK_KINDS_COUNT = LM_BLOCK_KINDS(X) };
#undef X

/* The most groups and elements of a block. */
enum { LM_BLOCK_GROUPS = 16, LM_BLOCK_LONGEST = 256 };

/* Returns a kind by its position in the list. */
static inline const lm_block_kind *lm_block_kind_of(int kind) {
#define X(name) &lm_block_##name,
  static const lm_block_kind *const kinds[] = {LM_BLOCK_KINDS(X)};
#undef X
  return kinds[kind];
}

#define LM_BLOCK_INLINE static inline __attribute__((always_inline))

LM_BLOCK_INLINE float lm_block_half(const uint8_t *from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  return lm_from_half(bits);
#endif
}

/* Returns the field of element i. */
LM_BLOCK_INLINE int lm_block_field(const uint8_t *block, lm_block_bits b, int i) {
  const int each = b.span * 8 / b.width, part = i % each;
  return block[b.at + i / each * b.span + part % b.span] >> part / b.span * b.width & ((1 << b.width) - 1);
}

/* Returns the integer of element i, less zero. */
LM_BLOCK_INLINE int lm_block_integer(const lm_block_kind *k, const uint8_t *block, int i) {
  int q = lm_block_field(block, k->low, i);
  if (k->high.width) q |= lm_block_field(block, k->high, i) << k->low.width;
  return (k->table ? k->table[q] : q ^ k->flip) - k->zero;
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

/* Reads the scale and the minimum of each group of a block. */
LM_BLOCK_INLINE void lm_block_scales(const lm_block_kind *k, const uint8_t *block, float *scale, float *minimum) {
  switch (k->form) {
    case LM_BLOCK_HALF: scale[0] = lm_block_half(block); break;
    case LM_BLOCK_HALF_MINIMUM:
      scale[0] = lm_block_half(block);
      minimum[0] = -lm_block_half(block + 2);
      break;
    case LM_BLOCK_SIX_BITS: {
      const float d = lm_block_half(block), least = lm_block_half(block + 2);
      uint32_t words[4];
      lm_block_six_bits(block, words);
      uint8_t bytes[16];
      memcpy(bytes, words, sizeof bytes);
      for (int i = 0; i < 8; i++) scale[i] = d * (float)bytes[i];
      for (int i = 0; i < 8; i++) minimum[i] = least * (float)bytes[8 + i];
      break;
    }
    case LM_BLOCK_NIBBLES: {
      const float d = lm_block_half(block + 80), least = lm_block_half(block + 82);
      for (int i = 0; i < 16; i++) scale[i] = d * (float)(block[i] & 15);
      for (int i = 0; i < 16; i++) minimum[i] = least * (float)(block[i] >> 4);
      break;
    }
    case LM_BLOCK_SIGNED_BYTES: {
      const float d = lm_block_half(block + 208);
      for (int i = 0; i < 16; i++) scale[i] = d * (float)(int8_t)block[192 + i];
      break;
    }
    case LM_BLOCK_SIGNED_SIX_BITS: {
      const float d = lm_block_half(block + 108);
      for (int i = 0; i < 16; i++) {
        const int low = block[96 + i % 8] >> i / 8 * 4 & 15, high = block[104 + i % 4] >> i / 4 * 2 & 3;
        scale[i] = d * (float)((low | high << 4) - 32);
      }
      break;
    }
    case LM_BLOCK_SPLIT_SIX_BITS: {
      const float d = lm_block_half(block);
      for (int i = 0; i < 8; i++) {
        const int low = block[4 + i / 2] >> i % 2 * 4 & 15, high = block[2 + i / 4] >> i % 4 * 2 & 3;
        scale[i] = d * (float)((low | high << 4) - 32);
      }
      break;
    }
    case LM_BLOCK_EXPONENT: {
      const uint32_t e = block[0], bits = e > 1 ? (e - 1) << 23 : 0x200000u << e; /* the bits of 2^(e - 128) */
      memcpy(scale, &bits, sizeof bits);
      break;
    }
  }
}
