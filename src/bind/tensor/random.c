/* Random state:
 *
 *   manual_seed(n)   get_rng_state(device) -> uint8 tensor of 16 bytes   set_rng_state(state, device)
 *   with_seed(seed, f, ...)                       returns what f returns; the CPU's generator goes on as before
 */
#include "bind/bind.h"
#include "tensor/generator.h"

static int bind_manual_seed(lua_State *L) {
  lm_generator_seed_all((uint64_t)lm_need_int(L, 1, "manual_seed", "seed"));
  return 0;
}

enum { STATE_BYTES = 16 }; /* seed and offset, little-endian */

static lm_status attempt_state(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  return lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){STATE_BYTES}, LM_CONTIGUOUS, arg);
}

static int bind_get_rng_state(lua_State *L) {
  lm_draw draw = lm_generator_get(lm_device_or_default(L, 1, "get_rng_state"));
  lm_tensor *t;
  lm_return_tensors(L, 1, 1, attempt_state, &t, &t);
  for (int i = 0; i < 8; i++) {
    t->data[i] = (char)(draw.seed >> 8 * i);
    t->data[8 + i] = (char)(draw.offset >> 8 * i);
  }
  return 1;
}

static int bind_set_rng_state(lua_State *L) {
  lm_device device = lm_device_or_default(L, 2, "set_rng_state");
  const lm_tensor *t = lm_need_tensor(L, 1, "set_rng_state", "state");
  if (t->dtype != LM_U8 || t->numel != STATE_BYTES || LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))
    return lm_raise_text(L,
                         "set_rng_state: state: what get_rng_state gives (16 bytes of uint8 on the CPU) expected, "
                         "got %s %s",
                         lm_dtype_name(t->dtype), lm_shape_of(t));
  lm_draw draw = {0, 0};
  for (int i = 0; i < 8; i++) {
    draw.seed |= (uint64_t)(uint8_t)t->data[i] << 8 * i;
    draw.offset |= (uint64_t)(uint8_t)t->data[8 + i] << 8 * i;
  }
  lm_generator_set(device, draw);
  return 0;
}

/* with_seed(seed, f, ...): what f returns. The CPU's random numbers come from the seed meanwhile, and then go on as if
 * nothing had been, an error or not. */
static int bind_with_seed(lua_State *L) {
  lm_device cpu = LM_DEVICE(LM_CPU, 0);
  lm_draw before = lm_generator_get(cpu);
  lm_generator_set(cpu, (lm_draw){(uint64_t)luaL_checknumber(L, 1), 0});
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_generator_set(cpu, before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

const luaL_Reg lm_random_functions[] = {
    {"manual_seed", bind_manual_seed},
    {"get_rng_state", bind_get_rng_state},
    {"set_rng_state", bind_set_rng_state},
    {"with_seed", bind_with_seed},
    {NULL, NULL},
};
