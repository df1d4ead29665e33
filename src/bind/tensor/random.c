/* Sets random generators. `where` is a generator, a device (its default one), or nothing (that of the default device):
 *
 *   get_rng_state     uint8 tensor of 16 bytes
 *   seed_generator    returns the seed, by default from the system
 *   with_seed(seed, f, ...)   returns what f returns; the CPU's generator continues as before
 */
#include <stddef.h>

#include "base/message.h"
#include "bind/bind.h"
#include "tensor/generator.h"

/* A generator and its device; NULL for the device's default generator. */
typedef struct generator_place {
  lm_generator *g;
  lm_device device;
} generator_place;

LM_READER(generator_place, where) {
  lm_need(L, lm_settle());
  lm_generator *g = lm_to_object(L, i, &lm_generator_type);
  return (generator_place){g, g                       ? g->device
                              : lua_isnoneornil(L, i) ? lm_default_device()
                                                      : lm_need_device(L, i, fn, "device")};
}

LM_FUNCTION_AS(generator, "Generator", (device, device, lm_default_device()), (flag, is_default)) {
  lm_generator *g = lm_object_new(L, &lm_generator_type);
  *g = (lm_generator){.device = device, .is_default = is_default, .own = {.seed = 67280421310721}};
  return 1;
}

LM_FUNCTION(is_generator) { return lm_return_bool(L, lm_to_object(L, 1, &lm_generator_type) != NULL); }

LM_FUNCTION(generator_device) {
  const lm_generator *g = lm_need_object(L, 1, &lm_generator_type, "Generator");
  return lm_return_text(L, lm_device_name(g->device));
}

static int push_seed(lua_State *L, uint64_t seed) {
  lm_push_element(L, LM_I64, &seed);
  return 1;
}

LM_FUNCTION_AS(seed_generator, "manual_seed", (where, where), (int, seed, (int64_t)lm_generator_fresh_seed())) {
  lm_generator_set(where.g, where.device, (lm_draw){.seed = (uint64_t)seed});
  return push_seed(L, (uint64_t)seed);
}

LM_FUNCTION(initial_seed, (where, where)) { return push_seed(L, lm_generator_get(where.g, where.device).seed); }

LM_FUNCTION(manual_seed, (int, seed)) {
  lm_need(L, lm_settle());
  lm_generator_seed_all((uint64_t)seed);
  return 0;
}

enum { STATE_BYTES = sizeof(lm_draw) }; /* seed and offset, little-endian */
_Static_assert(STATE_BYTES == 16 && offsetof(lm_draw, offset) == 8, "the state in files");

static lm_status attempt_state(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  return lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){STATE_BYTES}, LM_CONTIGUOUS, arg);
}

LM_FUNCTION(get_rng_state, (where, where)) {
  lm_draw draw = lm_generator_get(where.g, where.device);
  lm_tensor *t;
  lm_return_tensors(L, 1, 1, attempt_state, &t, &t);
  memcpy(t->data, &draw, STATE_BYTES);
  return 1;
}

LM_FUNCTION(set_rng_state, (tensor, state), (where, where)) {
  if (state->dtype != LM_U8 || state->numel != STATE_BYTES || LM_DEVICE_KIND(state->device) != LM_CPU ||
      !lm_is_contiguous(state))
    return lm_raise(L, lm_fail_value("set_rng_state", "state", "a result of get_rng_state (uint8 [16] on the CPU)",
                                     lm_text("%s %s on %s", lm_dtype_name(state->dtype), lm_shape_of(state),
                                             lm_device_name(state->device))));
  lm_draw draw;
  memcpy(&draw, state->data, STATE_BYTES);
  lm_generator_set(where.g, where.device, draw);
  return 0;
}

/* Runs f for with_seed(seed, f, ...), and returns its results. The CPU's generator starts at the seed meanwhile; then,
 * even after an error, it continues from its state before. */
LM_FUNCTION(with_seed) {
  lm_device cpu = LM_DEVICE(LM_CPU, 0);
  lm_draw before = lm_generator_get(NULL, cpu);
  lm_generator_set(NULL, cpu, (lm_draw){(uint64_t)lm_need_int(L, 1, "with_seed", "seed"), 0});
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_generator_set(NULL, cpu, before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}
