#include "tensor/generator.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/random.h>
#include <time.h>

#include "base/thread.h"
#include "base/thread_state.h"

typedef struct generators {
  bool seeded;                                   /* true once `state` is set */
  lm_draw state[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* states, one for each device */
} generators;

LM_MUTEX(lock);
static generators shared;
static _Thread_local generators own; /* generators of a thread with a Lua state of its own */

static generators *generators_here(void) { return lm_is_script_thread() ? &own : &shared; }

static void seed_every(uint64_t seed) {
  generators *g = generators_here();
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++)
    for (int i = 0; i < LM_DEVICE_MAX; i++) g->state[kind][i] = (lm_draw){.seed = seed};
  g->seeded = true;
}

uint64_t lm_generator_fresh_seed(void) {
  uint64_t seed;
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec;
  }
  return seed & (((uint64_t)1 << 53) - 1);
}

/* Returns g's state, or that of the device's default generator, with a random seed at first. Requires `lock`. */
static lm_draw *state_of(lm_generator *g, lm_device device) {
  if (g && !g->is_default) return &g->own;
  generators *here = generators_here();
  if (!here->seeded) seed_every(lm_generator_fresh_seed());
  return &here->state[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)];
}

lm_draw lm_generator_take(lm_generator *g, lm_device device, uint64_t blocks) {
  LM_LOCKED(&lock);
  lm_draw *state = state_of(g, device), taken = *state;
  state->offset += blocks;
  return taken;
}

lm_draw lm_generator_get(lm_generator *g, lm_device device) { return lm_generator_take(g, device, 0); }

void lm_generator_set(lm_generator *g, lm_device device, lm_draw value) {
  LM_LOCKED(&lock);
  *state_of(g, device) = value;
}

void lm_generator_seed_all(uint64_t seed) {
  LM_LOCKED(&lock);
  seed_every(seed);
}

static _Thread_local const uint64_t *extra_offset;

void lm_generator_set_extra(const uint64_t *extra) { extra_offset = extra; }
const uint64_t *lm_generator_extra(void) { return extra_offset; }
