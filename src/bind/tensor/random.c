/* Sets random generators. `where` is a generator, a device (its default one), or nothing (that of the default device):
 *
 *   manual_seed(n)   get_rng_state(where) -> uint8 tensor of 16 bytes   set_rng_state(state, where)
 *   generator(device, is_default) -> generator    is_generator(v)       generator_device(g) -> device
 *   seed_generator(where [, n]) -> n               n: by default from the system  initial_seed(where) -> n
 *   with_seed(seed, f, ...)                       returns what f returns; the CPU's generator continues as before
 */
#include <stddef.h>

#include "base/message.h"
#include "bind/bind.h"
#include "tensor/generator.h"

static void close_generator(void *object) { (void)object; }
const lm_object_type lm_generator_type = {"luminary.generator", sizeof(lm_generator), close_generator, "a generator",
                                          NULL};

/* Returns the generator at i and its device; NULL for a device's default generator. */
static lm_generator *generator_at(lua_State *L, int i, const char *fn, lm_device *device) {
  lm_generator *g = lm_to_object(L, i, &lm_generator_type);
  *device = g ? g->device : lm_device_or_default(L, i, fn);
  return g;
}

LM_FUNCTION(generator) {
  lm_device device = lm_device_or_default(L, 1, "Generator");
  bool is_default = lua_toboolean(L, 2);
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

LM_FUNCTION(seed_generator) {
  lm_device device;
  lm_generator *g = generator_at(L, 1, "seed", &device);
  uint64_t seed =
      lua_isnoneornil(L, 2) ? lm_generator_fresh_seed() : (uint64_t)lm_need_int(L, 2, "manual_seed", "seed");
  lm_generator_set(g, device, (lm_draw){.seed = seed});
  return push_seed(L, seed);
}

LM_FUNCTION(initial_seed) {
  lm_device device;
  lm_generator *g = generator_at(L, 1, "initial_seed", &device);
  return push_seed(L, lm_generator_get(g, device).seed);
}

LM_FUNCTION(manual_seed) {
  lm_generator_seed_all((uint64_t)lm_need_int(L, 1, "manual_seed", "seed"));
  return 0;
}

enum { STATE_BYTES = sizeof(lm_draw) }; /* seed and offset, little-endian */
_Static_assert(STATE_BYTES == 16 && offsetof(lm_draw, offset) == 8, "the state in files");

static lm_status attempt_state(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  return lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){STATE_BYTES}, LM_CONTIGUOUS, arg);
}

LM_FUNCTION(get_rng_state) {
  lm_device device;
  lm_generator *g = generator_at(L, 1, "get_rng_state", &device);
  lm_draw draw = lm_generator_get(g, device);
  lm_tensor *t;
  lm_return_tensors(L, 1, 1, attempt_state, &t, &t);
  memcpy(t->data, &draw, STATE_BYTES);
  return 1;
}

LM_FUNCTION(set_rng_state) {
  lm_device device;
  lm_generator *g = generator_at(L, 2, "set_rng_state", &device);
  const lm_tensor *t = lm_need_tensor(L, 1, "set_rng_state", "state");
  if (t->dtype != LM_U8 || t->numel != STATE_BYTES || LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))
    return lm_raise(
        L, lm_fail_value("set_rng_state", "state", "a result of get_rng_state (uint8 [16] on the CPU)",
                         lm_text("%s %s on %s", lm_dtype_name(t->dtype), lm_shape_of(t), lm_device_name(t->device))));
  lm_draw draw;
  memcpy(&draw, t->data, STATE_BYTES);
  lm_generator_set(g, device, draw);
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
