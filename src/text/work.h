/* Limits the steps of patterns and trie walks for one text, since a hostile file makes them grow faster than the text.
 * Tokenizers in use take some 3 steps per byte. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the number of steps allowed for a text of n bytes. */
static inline uint64_t lm_work_for(size_t n) { return 100000000 + 300 * (uint64_t)n; }

/* Subtracts `steps` from *left; returns false, with *left at 0, if fewer were left. */
static inline bool lm_work_take(uint64_t *left, uint64_t steps) {
  bool enough = steps <= *left;
  *left = enough ? *left - steps : 0;
  return enough;
}
