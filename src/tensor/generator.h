/* Random numbers: Philox4x32-10 with a counter (Salmon et al., "Parallel Random Numbers: As Easy
 * as 1, 2, 3", SC 2011). Element i of a draw uses block offset + i/4, lane i%4, whatever the
 * device or the number of threads; the arithmetic itself is kernels/philox.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

typedef struct lm_draw {
  uint64_t seed, offset;
} lm_draw; /* offset in blocks of four 32-bit values */

/* One that somebody holds: with numbers of its own, or what stands for its device's default one. Wherever a generator
 * is asked for, NULL is the default one of the device. */
typedef struct lm_generator {
  lm_device device;
  bool is_default;
  lm_draw own;
} lm_generator;

/* Reserve `blocks`. Thread-safe. */
LM_API lm_draw lm_generator_take(lm_generator *g, lm_device device, uint64_t blocks);
LM_API lm_draw lm_generator_get(lm_generator *g, lm_device device);
LM_API void lm_generator_set(lm_generator *g, lm_device device, lm_draw state);
LM_API void lm_generator_seed_all(uint64_t seed); /* the default one of every device, now and later */
LM_API uint64_t lm_generator_fresh_seed(void);    /* from the system; a Lua number holds it */

/* While a step is captured for replay: device memory whose number the captured kernels add to their draws' offsets, so
 * that each replay draws again. NULL otherwise. Per thread. */
LM_API void lm_generator_set_extra(const uint64_t *extra);
LM_API const uint64_t *lm_generator_extra(void);
