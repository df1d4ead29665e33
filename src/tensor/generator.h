/* Draws random numbers: Philox4x32-10 with a counter (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
 * 2011). Element i of a draw uses block offset + i/4, lane i%4, whatever the device or the number of threads.
 * kernels/philox.h has the arithmetic. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

typedef struct lm_draw {
  uint64_t seed, offset;
} lm_draw; /* state of a generator; offset in blocks of four 32-bit values */

/* A generator object: one with a state of its own or, if is_default, its device's default generator. In the functions
 * below, NULL is the device's default generator. */
typedef struct lm_generator {
  lm_device device;
  bool is_default;
  lm_draw own;
} lm_generator;

/* Returns the state and advances it by `blocks`. Thread-safe. */
LM_API lm_draw lm_generator_take(lm_generator *g, lm_device device, uint64_t blocks);
LM_API lm_draw lm_generator_get(lm_generator *g, lm_device device);
LM_API void lm_generator_set(lm_generator *g, lm_device device, lm_draw state);
LM_API void lm_generator_seed_all(uint64_t seed); /* seeds every device's default generator */
LM_API uint64_t lm_generator_fresh_seed(void);    /* 53 random bits from the system, exact in a Lua number */

/* Sets, while a graph is captured, device memory with a number that captured kernels add to their offsets, so that each
 * replay draws new numbers. NULL otherwise. Per thread. */
LM_API void lm_generator_set_extra(const uint64_t *extra);
LM_API const uint64_t *lm_generator_extra(void);
