/* Reads quantized blocks in kernels: four integers are the bytes of a word. */
#pragma once

#include "types.cuh"

#include "blocks.h"

static const uint32_t LM_EACH_BYTE = 0x01010101u;

/* Reads a word whose offset in its block is known to the compiler; blocks begin at multiples of their size. */
LM_DEVICE uint32_t lm_block_aligned_word(const uint8_t *from, int at) {
  if (at % 4 == 0) return *(const uint32_t *)from;
  if (at % 2 == 0) return ((const uint16_t *)from)[0] | (uint32_t)((const uint16_t *)from)[1] << 16;
  return from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24;
}

/* Returns the fields of elements i .. i + 3, a byte each; i is a multiple of 4. */
LM_DEVICE uint32_t lm_block_word_fields(const lm_block_kind &k, const uint8_t *block, lm_block_bits b, int i) {
  const int each = b.span * 8 / b.width, part = i % each;
  if (b.span == 1) { /* bits of one byte: each to a byte of its own */
    return (uint32_t)(block[b.at + i / each] >> part & 15) * 0x204081u & LM_EACH_BYTE;
  }
  const uint8_t *from = block + b.at + i / each * b.span + part % b.span;
  return lm_block_aligned_word(from, k.bytes | b.at) >> part / b.span * b.width & LM_EACH_BYTE * ((1u << b.width) - 1);
}

/* Returns integers of elements i .. i + 3 as signed bytes, less 128 if that is the kind's zero. */
LM_DEVICE uint32_t lm_block_word_integers(const lm_block_kind &k, const uint8_t *block, int i) {
  uint32_t q = lm_block_word_fields(k, block, k.low, i);
  if (k.high.width) q |= lm_block_word_fields(k, block, k.high, i) << k.low.width;
  if (k.table[0]) {
    uint32_t entries = 0;
    LM_UNROLL
    for (int l = 0; l < 32; l += 8) entries |= (uint32_t)lm_block_entry(&k, q >> l & 15) << l;
    q = entries;
  }
  return q ^ LM_EACH_BYTE * (uint32_t)(k.flip ^ (k.zero == 128 ? 128 : 0));
}

/* Returns what lm_block_word_integers has not subtracted. */
LM_DEVICE int lm_block_zero_left(const lm_block_kind &k) { return k.zero == 128 ? 0 : k.zero; }

/* Reads the numbers of elements i .. i + 3 of a block; i is a multiple of 4. */
LM_DEVICE void lm_block_read_four(const lm_block_kind &k, const uint8_t *block, int i, float *v) {
  float minimum = 0;
  const float scale = lm_block_scale(&k, block, i / k.group, &minimum);
  const uint32_t q = lm_block_word_integers(k, block, i);
  LM_UNROLL
  for (int l = 0; l < 4; l++) {
    v[l] = __fmul_rn(scale, (float)((int8_t)(q >> 8 * l) - lm_block_zero_left(k)));
    if (lm_block_has_minima(&k)) v[l] -= minimum;
  }
}

#ifndef __CUDACC_RTC__
/* Returns f(a value of the type of a kind). */
template <class F>
static int lm_for_block_kind(int kind, F f) {
  int at = 0;
#define X(name) \
  if (kind == at++) return f(lm_block_##name());
  LM_BLOCK_KINDS(X)
#undef X
  return 1;
}
#endif
