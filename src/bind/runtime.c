/* What belongs to the process or the thread: memory, generators, threads, time, environment, defaults. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/worker.h"
#include "bind/bind.h"
#include "device/alloc.h"
#include "op/backend.h"
#include "tensor/generator.h"

/* The device at argument i, or the default one. */
static lm_device device_arg(lua_State *L, int i, const char *fn) {
  lm_device device = lm_default_device();
  if (lua_isnoneornil(L, i)) return device;
  lm_status status = lm_read_device(L, LM_STATE(L), i, fn, "device", &device);
  if (status != LM_OK) lm_raise(L, status);
  return device;
}

/* ---- memory */
static int bind_memory_allocated(lua_State *L) {
  lua_pushnumber(L, (double)lm_memory_stats_of(device_arg(L, 1, "memory_allocated")).allocated);
  return 1;
}

static int bind_memory_reserved(lua_State *L) {
  lua_pushnumber(L, (double)lm_memory_stats_of(device_arg(L, 1, "memory_reserved")).reserved);
  return 1;
}

static int bind_max_memory_allocated(lua_State *L) {
  lua_pushnumber(L, (double)lm_memory_stats_of(device_arg(L, 1, "max_memory_allocated")).max_allocated);
  return 1;
}

static int bind_max_memory_reserved(lua_State *L) {
  lua_pushnumber(L, (double)lm_memory_stats_of(device_arg(L, 1, "max_memory_reserved")).max_reserved);
  return 1;
}

static int bind_reset_peak(lua_State *L) {
  lm_memory_reset_peak(device_arg(L, 1, "reset_peak_memory_stats"));
  return 0;
}

static int bind_empty_cache(lua_State *L) {
  lm_memory_empty_cache(device_arg(L, 1, "empty_cache"));
  return 0;
}

static int bind_live_tensors(lua_State *L) {
  lm_home_drain(L, LM_STATE(L)->home); /* functions that hold tensors, of graphs that are gone */
  lua_pushnumber(L, (double)lm_live_tensors());
  return 1;
}

static int bind_fail_alloc_from(lua_State *L) {
  int64_t n = 0;
  lm_status status = lm_read_int(L, LM_STATE(L), 1, "_fail_alloc_from", "n", &n);
  if (status != LM_OK) return lm_raise(L, status);
  lm_alloc_fail_from((long)n);
  return 0;
}

static int bind_alloc_count(lua_State *L) {
  lua_pushnumber(L, (double)lm_alloc_count());
  return 1;
}

/* ---- generators */
static int bind_manual_seed(lua_State *L) {
  int64_t seed = 0;
  lm_status status = lm_read_int(L, LM_STATE(L), 1, "manual_seed", "seed", &seed);
  if (status != LM_OK) return lm_raise(L, status);
  lm_generator_seed_all((uint64_t)seed);
  return 0;
}

enum { STATE_BYTES = 16 }; /* seed and offset, little-endian */

static lm_status attempt_state(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  const int64_t size[] = {STATE_BYTES};
  return lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, size, LM_CONTIGUOUS, arg);
}

/* get_rng_state(device): uint8 tensor of 16 bytes. */
static int bind_get_rng_state(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_draw draw = lm_generator_get(device_arg(L, 1, "get_rng_state"));
  lm_box *b = lm_box_new(L);
  lm_tensor *t = NULL;
  lm_status status = lm_attempt_twice(L, s, attempt_state, &t);
  if (status != LM_OK) return lm_raise(L, status);
  for (int i = 0; i < 8; i++) {
    t->data[i] = (char)(draw.seed >> 8 * i);
    t->data[8 + i] = (char)(draw.offset >> 8 * i);
  }
  lm_box_fill(s, b, t);
  return 1;
}

static int bind_set_rng_state(lua_State *L) {
  lm_device device = device_arg(L, 2, "set_rng_state");
  lm_tensor *t = NULL;
  lm_status status = lm_read_tensor(L, LM_STATE(L), 1, "set_rng_state", "state", &t);
  if (status == LM_OK &&
      (t->dtype != LM_U8 || t->numel != STATE_BYTES || LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))) {
    status = lm_fail(LM_E_ARG,
                     "set_rng_state: state: what get_rng_state gives (16 bytes of uint8 on the CPU) expected, "
                     "got %s %s",
                     lm_dtype_name(t->dtype), lm_shape_of(t));
  }
  if (status != LM_OK) return lm_raise(L, status);
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

/* ---- threads, time, environment */
static int bind_set_num_threads(lua_State *L) {
  int64_t n = 0;
  lm_status status;
  TRY(lm_read_int(L, LM_STATE(L), 1, "set_num_threads", "n", &n));
  if (n < 1 || n > 4096) {
    status = lm_fail(LM_E_ARG, "set_num_threads: n: 1 to 4096 expected, got %lld", (long long)n);
    goto done;
  }
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  if (!cpu) return lm_raise(L, LM_E_MISSING);
  cpu->set_threads((int)n);
done:
  return status == LM_OK ? 0 : lm_raise(L, status);
}

static int bind_get_num_threads(lua_State *L) {
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  if (!cpu) return lm_raise(L, LM_E_MISSING);
  lua_pushinteger(L, cpu->get_threads());
  return 1;
}

static int bind_synchronize(lua_State *L) {
  lm_status status = lm_device_synchronize(device_arg(L, 1, "synchronize"));
  return status == LM_OK ? 0 : lm_raise(L, status);
}

static int bind_time(lua_State *L) {
  lua_pushnumber(L, lm_seconds());
  return 1;
}

/* What a worker thread set: a table in its state's registry, from names to strings, or false where it removed one. */
static const char own_environment;

static int set_own(lua_State *L) { /* name at 1, value at 2 */
  lm_reg_get(L, &own_environment);
  if (!lua_istable(L, -1)) {
    lua_newtable(L);
    lua_pushlightuserdata(L, (void *)&own_environment);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_pushvalue(L, 1);
  if (lua_isnoneornil(L, 2)) {
    lua_pushboolean(L, 0);
  } else {
    lua_pushvalue(L, 2);
    lua_tostring(L, -1);
  }
  lua_rawset(L, -3);
  return 0;
}

/* True with the value (or nil) on the stack if the worker has set or removed the name at 1. */
static bool push_own(lua_State *L) {
  lm_reg_get(L, &own_environment);
  if (!lua_istable(L, -1)) return false;
  lua_pushvalue(L, 1);
  lua_rawget(L, -2);
  if (lua_isnil(L, -1)) return false;
  if (!lua_toboolean(L, -1)) lua_pushnil(L);
  return true;
}

/* What the CUDA driver reads once, when it is first asked for its devices. */
static bool comes_too_late(const char *name) {
  static const char *const read_once[] = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LM_CUDA_VIRTUAL"};
  for (size_t i = 0; i < sizeof read_once / sizeof *read_once; i++)
    if (strcmp(name, read_once[i]) == 0) return lm_device_asked(LM_CUDA);
  return false;
}

static int bind_setenv(lua_State *L) {
  lua_settop(L, 2);
  if (lua_type(L, 2) == LUA_TNUMBER) lua_tostring(L, 2); /* in place */
  const char *name = lm_to_text(L, 1), *value = lm_to_text(L, 2);
  if (!name || !(lua_isnil(L, 2) || value)) {
    return lm_raise_text(L, "setenv: a name and a string (or nil, to remove it) expected, got %s",
                         lm_got(L, LM_STATE(L), name ? 2 : 1));
  }
  if (comes_too_late(name))
    return lm_raise_text(
        L, "setenv: %s is read when CUDA devices are first asked for, which has happened; set it before", name);
  if (lm_is_worker() && *name && !strchr(name, '=')) return set_own(L);
  int failed = value ? setenv(name, value, 1) : unsetenv(name);
  if (failed) return lm_raise_text(L, "setenv: '%s' is no name for an environment variable", lm_brief(name, 60));
  return 0;
}

static int bind_getenv(lua_State *L) {
  const char *name;
  lm_status status = lm_read_text(L, LM_STATE(L), 1, "getenv", "name", &name);
  if (status != LM_OK) return lm_raise(L, status);
  if (lm_is_worker() && push_own(L)) return 1;
  const char *value = getenv(name);
  if (value) {
    lua_pushstring(L, value);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

/* ---- defaults, and words checked */
static int bind_set_default_dtype(lua_State *L) {
  lm_dtype d = LM_F32;
  lm_status status = lm_read_dtype(L, LM_STATE(L), 1, "set_default_dtype", "dtype", &d);
  if (status == LM_OK && !lm_dtype_is_float(d)) {
    status = lm_fail(LM_E_DTYPE, "set_default_dtype: a floating dtype expected, got %s", lm_dtype_name(d));
  }
  if (status != LM_OK) return lm_raise(L, status);
  lm_set_default_dtype(d);
  return 0;
}

static int bind_get_default_dtype(lua_State *L) {
  lua_pushstring(L, lm_dtype_name(lm_default_dtype()));
  return 1;
}

static int bind_set_default_device(lua_State *L) {
  lm_set_default_device(lua_isnoneornil(L, 1) ? LM_DEVICE(LM_CPU, 0) : device_arg(L, 1, "set_default_device"));
  return 0;
}

static int bind_get_default_device(lua_State *L) {
  lua_pushstring(L, lm_device_name(lm_default_device()));
  return 1;
}

static int bind_device(lua_State *L) {
  lm_device d = LM_NO_DEVICE;
  lm_status status = lm_read_device(L, LM_STATE(L), 1, "device", "device", &d);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushstring(L, lm_device_name(d));
  return 1;
}

static lm_dtype dtype_arg(lua_State *L, const char *fn) {
  lm_dtype d = LM_F32;
  lm_status status = lm_read_dtype(L, LM_STATE(L), 1, fn, "dtype", &d);
  if (status != LM_OK) lm_raise(L, status);
  return d;
}

static int bind_dtype(lua_State *L) {
  lua_pushstring(L, lm_dtype_name(dtype_arg(L, "dtype")));
  return 1;
}

static int bind_dtype_size(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)lm_dtype_size(dtype_arg(L, "dtype_size")));
  return 1;
}

static int bind_is_floating_point(lua_State *L) {
  lm_tensor *t = NULL;
  if (lua_type(L, 1) == LUA_TSTRING) {
    lua_pushboolean(L, lm_dtype_is_float(dtype_arg(L, "is_floating_point")));
    return 1;
  }
  lm_status status = lm_read_tensor(L, LM_STATE(L), 1, "is_floating_point", "x", &t);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushboolean(L, lm_dtype_is_float(t->dtype));
  return 1;
}

static int bind_device_count(lua_State *L) {
  const char *kind = lm_to_text(L, 1);
  if (!kind || (strcmp(kind, "cpu") != 0 && strcmp(kind, "cuda") != 0)) {
    return lm_raise_text(L, "device_count: \"cpu\" or \"cuda\" expected, got %s", lm_got(L, LM_STATE(L), 1));
  }
  lua_pushinteger(L, lm_device_count(strcmp(kind, "cpu") == 0 ? LM_CPU : LM_CUDA));
  return 1;
}

const luaL_Reg lm_runtime_functions[] = {
    {"memory_allocated", bind_memory_allocated},
    {"memory_reserved", bind_memory_reserved},
    {"max_memory_allocated", bind_max_memory_allocated},
    {"max_memory_reserved", bind_max_memory_reserved},
    {"reset_peak_memory_stats", bind_reset_peak},
    {"empty_cache", bind_empty_cache},
    {"live_tensors", bind_live_tensors},
    {"_fail_alloc_from", bind_fail_alloc_from},
    {"_alloc_count", bind_alloc_count},
    {"manual_seed", bind_manual_seed},
    {"get_rng_state", bind_get_rng_state},
    {"set_rng_state", bind_set_rng_state},
    {"with_seed", bind_with_seed},
    {"set_num_threads", bind_set_num_threads},
    {"get_num_threads", bind_get_num_threads},
    {"synchronize", bind_synchronize},
    {"time", bind_time},
    {"setenv", bind_setenv},
    {"getenv", bind_getenv},
    {"set_default_dtype", bind_set_default_dtype},
    {"get_default_dtype", bind_get_default_dtype},
    {"set_default_device", bind_set_default_device},
    {"get_default_device", bind_get_default_device},
    {"device", bind_device},
    {"dtype", bind_dtype},
    {"dtype_size", bind_dtype_size},
    {"is_floating_point", bind_is_floating_point},
    {"device_count", bind_device_count},
    {NULL, NULL},
};
