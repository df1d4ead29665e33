/* How much work one text may be: the steps of patterns and of walks through tries, whose number a hostile file makes
 * grow faster than the text. Texts by tokenizers that people use take some 3 steps a byte. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For a text of n bytes. */
static inline uint64_t lm_work_for(size_t n) { return 100000000 + 300 * (uint64_t)n; }

/* Takes that many steps of what is left; false if those were too many. */
static inline bool lm_work_take(uint64_t *left, uint64_t steps) {
  bool enough = steps <= *left;
  *left = enough ? *left - steps : 0;
  return enough;
}
