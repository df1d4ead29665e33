/* Scopes: functions that run f in a mode and restore the mode however f ends. They are C functions
 * because a yield across a C call is an error, where a Lua pcall would let a coroutine leak the mode. */
#include "bind/bind.h"

static int need_function(lua_State *L, int i, const char *fn) {
  if (lua_type(L, i) == LUA_TFUNCTION) return 0;
  return lm_raise_text(L, "%s: a function expected, got %s: lm.%s(%sfunction() … end)", fn, lm_got(L, LM_STATE(L), i),
                       fn, i > 1 ? "{…}, " : "");
}

static int with_grad(lua_State *L, const char *fn, bool on) {
  need_function(L, 1, fn);
  bool before = lm_grad_enabled();
  lm_set_grad_enabled(on);
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  lm_set_grad_enabled(before);
  return failed ? lua_error(L) : lua_gettop(L);
}

static int bind_no_grad(lua_State *L) { return with_grad(L, "no_grad", false); }
static int bind_enable_grad(lua_State *L) { return with_grad(L, "enable_grad", true); }

static int bind_is_grad_enabled(lua_State *L) {
  lua_pushboolean(L, lm_grad_enabled());
  return 1;
}

static int bind_set_grad_enabled(lua_State *L) {
  bool on = false;
  lm_status status = lm_read_bool(L, LM_STATE(L), 1, "set_grad_enabled", "on", &on);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushboolean(L, lm_grad_enabled());
  lm_set_grad_enabled(on);
  return 1;
}

/* detect_anomaly(f, ...) */
static int bind_detect_anomaly(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  if (lua_type(L, 1) != LUA_TFUNCTION) {
    return lm_raise_text(L, "detect_anomaly: a function expected, got %s: lm.autograd.detect_anomaly(function() … end)",
                         lm_got(L, s, 1));
  }
  bool before = lm_anomaly();
  lm_set_anomaly(true);
  s->step_at = 0;
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  lm_set_anomaly(before);
  return failed ? lua_error(L) : lua_gettop(L);
}

/* set_detect_anomaly(on) -> whether it was */
static int bind_set_detect_anomaly(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  bool on = false;
  lm_status status = lm_read_bool(L, s, 1, "set_detect_anomaly", "on", &on);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushboolean(L, lm_anomaly());
  lm_set_anomaly(on);
  s->step_at = 0;
  return 1;
}

/* is_checkpointing(): inside the function of a checkpoint, the first time or again */
static int bind_is_checkpointing(lua_State *L) {
  lua_pushboolean(L, lm_recipe_here());
  return 1;
}

static int bind_is_anomaly_enabled(lua_State *L) {
  lua_pushboolean(L, lm_anomaly());
  return 1;
}

/* autocast({device = …, dtype = …, enabled = true, cache_enabled = true}, f, ...): for tensors of one kind of device,
 * or of every kind where none is given, beside what surrounding scopes say of other kinds. dtype: float16 on CUDA and
 * bfloat16 elsewhere, by default. */
static int bind_autocast(lua_State *L) {
  static const char *const names[] = {"device", "dtype", "enabled", "cache_enabled"};
  lm_lua *s = LM_STATE(L);
  lm_device device = LM_NO_DEVICE;
  lm_dtype dtype = LM_NO_DTYPE;
  bool enabled = true, cached = true;
  lm_status status;
  if (lua_type(L, 1) != LUA_TTABLE) {
    return lm_raise_text(L, "autocast: options expected first: lm.autocast({dtype = \"bfloat16\"}, function() … end)");
  }
  need_function(L, 2, "autocast");
  int top = lua_gettop(L);
  luaL_checkstack(L, 8, "autocast");
  TRY(lm_check_options(L, 1, "autocast", 4, names));
  if (lm_field(L, 1, "device")) TRY(lm_read_device(L, s, lua_gettop(L), "autocast", "device", &device));
  if (lm_field(L, 1, "dtype")) TRY(lm_read_dtype(L, s, lua_gettop(L), "autocast", "dtype", &dtype));
  if (lm_field(L, 1, "enabled")) TRY(lm_read_bool(L, s, lua_gettop(L), "autocast", "enabled", &enabled));
  if (lm_field(L, 1, "cache_enabled")) { TRY(lm_read_bool(L, s, lua_gettop(L), "autocast", "cache_enabled", &cached)); }
  if (dtype != LM_NO_DTYPE && dtype != LM_BF16 && dtype != LM_F16) {
    status =
        lm_fail(LM_E_DTYPE, "autocast: dtype: \"bfloat16\" or \"float16\" expected, got \"%s\"", lm_dtype_name(dtype));
    goto done;
  }
  lua_settop(L, top);
  lm_autocast mode = lm_autocast_get();
  mode.uncached = !cached;
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    if (device != LM_NO_DEVICE && LM_DEVICE_KIND(device) != kind) continue;
    mode.on = (uint8_t)((mode.on & ~(1u << kind)) | (unsigned)enabled << kind);
    mode.dtype[kind] = (uint8_t)(dtype != LM_NO_DTYPE ? dtype : kind == LM_CUDA ? LM_F16 : LM_BF16);
  }
  lm_autocast before = lm_autocast_enter(mode);
  int failed = lm_pcall(L, top - 2, LUA_MULTRET);
  lm_autocast_leave(before);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
done:
  return lm_raise(L, status);
}

/* is_autocast_enabled([device]): for the kind of that device, or for any. */
static int bind_is_autocast_enabled(lua_State *L) {
  uint8_t on = lm_autocast_get().on;
  if (!lua_isnoneornil(L, 1)) {
    lm_device device;
    lm_status status = lm_read_device(L, LM_STATE(L), 1, "is_autocast_enabled", "device", &device);
    if (status != LM_OK) return lm_raise(L, status);
    on = on >> LM_DEVICE_KIND(device) & 1;
  }
  lua_pushboolean(L, on != 0);
  return 1;
}

/* get_autocast_dtype([device]) -> what products of tensors there become within the scope, or nil outside of one. */
static int bind_get_autocast_dtype(lua_State *L) {
  lm_device device = lm_default_device();
  lm_status status = LM_OK;
  if (!lua_isnoneornil(L, 1)) status = lm_read_device(L, LM_STATE(L), 1, "get_autocast_dtype", "device", &device);
  if (status != LM_OK) return lm_raise(L, status);
  lm_autocast mode = lm_autocast_get();
  if (!(mode.on >> LM_DEVICE_KIND(device) & 1)) return 0;
  lua_pushstring(L, lm_dtype_name((lm_dtype)mode.dtype[LM_DEVICE_KIND(device)]));
  return 1;
}

/* ---- scope and keep */

/* The tensors in the value at index i leave every scope up to `until` (NULL: all) and join `until`.
 * `seen` is the index of a table of tables already walked. */
static void spare(lua_State *L, lm_lua *s, int i, int seen, lm_scope *until) {
  lm_box *b = lm_to_box(L, s, i);
  if (b) {
    bool was_in = b->pprev != NULL;
    lm_box_unlink(b);
    if (was_in && until && b->t) {
      b->next = until->boxes;
      b->pprev = &until->boxes;
      if (b->next) b->next->pprev = &b->next;
      until->boxes = b;
    }
    return;
  }
  if (lua_type(L, i) != LUA_TTABLE) return;
  lua_pushvalue(L, i);
  lua_rawget(L, seen);
  bool known = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (known) return;
  lua_pushvalue(L, i);
  lua_pushboolean(L, 1);
  lua_rawset(L, seen);
  luaL_checkstack(L, 10, "tables are nested too deep");
  lua_pushnil(L);
  while (lua_next(L, i)) {
    int value = lua_gettop(L);
    int kind = lua_type(L, value);
    if (kind == LUA_TTABLE || kind == LUA_TUSERDATA) spare(L, s, value, seen, until);
    lua_settop(L, value - 1);
  }
}

/* keep(x): no scope drops x, or the tensors in the table x. */
static int bind_keep(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 1);
  if (!s->scope) return 1;
  if (lm_to_box(L, s, 1)) { /* the usual case makes no table */
    spare(L, s, 1, 0, NULL);
  } else {
    lua_newtable(L);
    spare(L, s, 1, 2, NULL);
    lua_settop(L, 1);
  }
  return 1;
}

/* (f, ...): calls f and spares what it returns. Protected by scope. */
int lm_bind_scope_body(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_scope *outer = s->scope->outer;
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  int results = lua_gettop(L);
  luaL_checkstack(L, 10, "scope");
  bool tables = false;
  for (int i = 1; i <= results; i++) tables |= lua_type(L, i) == LUA_TTABLE;
  if (tables) lua_newtable(L);
  for (int i = 1; i <= results; i++) spare(L, s, i, results + 1, outer);
  lua_settop(L, results);
  return results;
}

/* "was dropped at the end of the lm.scope at train.lua:12; …", kept alive in the table of sites. */
static const char *site(lua_State *L) {
  lm_push_where(L);
  const char *where = lua_tostring(L, -1);
  size_t n = lua_objlen(L, -1);
  lua_pushlstring(L, where, n >= 2 ? n - 2 : 0);
  lua_remove(L, -2);
  lua_pushfstring(L, "was dropped at the end of the lm.scope at %s; return it from the scope or spare it with lm.keep",
                  lua_tostring(L, -1));
  lua_remove(L, -2);
  lm_reg_get(L, &lm_reg_sites);
  lua_pushvalue(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  const char *text = lua_tostring(L, -1);
  lua_pop(L, 1);
  return text;
}

/* scope(f, ...): upvalue 3 is its body. */
int lm_bind_scope(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  need_function(L, 1, "scope");
  luaL_checkstack(L, 10, "scope");
  const char *why = site(L);
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  lm_scope scope = {.outer = s->scope};
  s->scope = &scope;
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  s->scope = scope.outer;
  while (scope.boxes) lm_box_drop(s, scope.boxes, why);
  return failed ? lua_error(L) : lua_gettop(L);
}

const luaL_Reg lm_mode_functions[] = {
    {"no_grad", bind_no_grad},
    {"enable_grad", bind_enable_grad},
    {"is_grad_enabled", bind_is_grad_enabled},
    {"set_grad_enabled", bind_set_grad_enabled},
    {"detect_anomaly", bind_detect_anomaly},
    {"set_detect_anomaly", bind_set_detect_anomaly},
    {"is_anomaly_enabled", bind_is_anomaly_enabled},
    {"is_checkpointing", bind_is_checkpointing},
    {"autocast", bind_autocast},
    {"is_autocast_enabled", bind_is_autocast_enabled},
    {"get_autocast_dtype", bind_get_autocast_dtype},
    {"keep", bind_keep},
    {NULL, NULL},
};
