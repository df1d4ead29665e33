/* Moves elements as larger units, and sorts pairs, for the indexing, sorting and joining slots. */
#pragma once

#include "backend/cuda/cuda.h"

/* ---- elements moved as larger units */

enum { LM_MAX_UNIT = 16 }; /* bytes that a thread loads at once */

/* Returns the largest power of two up to `unit` that divides `bytes`: a length, a distance, an address. */
static inline int lm_unit_for(int unit, int64_t bytes) {
  while (unit > 1 && bytes % unit != 0) unit /= 2;
  return unit;
}

/* ---- sorting */

/* Pairs on the device, to be sorted by key: the caller fills `keys` and `order`, and finds them sorted in the other
 * two. */
typedef struct lm_pairs {
  int64_t n;     /* number of pairs; callers may lower it after lm_pairs_take, to sort the first n */
  int key_bytes; /* bytes of a key: 4 or 8 */
  void *keys, *sorted_keys;
  uint32_t *order, *sorted;
} lm_pairs;

/* Allocates n pairs, in memory of the frame. LM_E_ARG if there are more than 2^31 - 1. */
lm_status lm_pairs_take(lm_cuda_frame *f, int64_t n, int key_bytes, lm_pairs *pairs);
/* Sorts stably by the keys' low `bits`. */
lm_status lm_pairs_sort(lm_cuda_frame *f, const lm_pairs *pairs, int bits);

/* Returns the number of bits of numbers up to `last`. */
static inline int lm_bits_of(uint64_t last) {
  int bits = 1;
  while (bits < 64 && last >> bits != 0) bits++;
  return bits;
}
