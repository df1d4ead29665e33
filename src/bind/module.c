/* Opens the module luminary.core: makes the state, the tensors' metatable, and every function by name. */
#include <dlfcn.h>

#include "base/c_stack.h"
#include "base/plugin.h"
#include "bind/bind.h"
#include "bind/host_call.h"
#include "op/kernels.h"
#include "op_entries.h"

const char lm_reg_sites, lm_reg_weak, lm_reg_strong, lm_reg_error, lm_reg_protected, lm_reg_int64, lm_reg_pointer,
    lm_reg_is_int64, lm_reg_own_files, lm_reg_too_deep, lm_reg_warned, lm_reg_noting, lm_reg_traceback, lm_reg_catchers,
    lm_reg_module, lm_reg_ported;
static const char lm_reg_anchor;

__attribute__((constructor)) static void set_calls(void) {
  lm_calls = (lm_call_functions){lm_bind_index, lm_bind_newindex, lm_bind_op, lm_bind_op_in_place, lm_bind_overload};
}

/* Returns the one address that this state has for a name, valid as long as the state lives. */
static const char *intern(lua_State *L, const char *name) {
  lm_reg_get(L, &lm_reg_anchor);
  lua_pushstring(L, name);
  const char *text = lua_tostring(L, -1);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  return text;
}

static void describe_ops(lua_State *L, lm_lua *s) {
  size_t head = LM_OP_COUNT * sizeof *s->ops, bytes = head;
  for (int id = 0; id < LM_OP_COUNT; id++) bytes += lm_round_up((size_t)lm_ops[id].size, 8);
  lm_reg_get(L, &lm_reg_anchor); /* Lua's memory, which outlives every finalizer */
  lua_pushliteral(L, "defaults");
  s->ops = lua_newuserdata(L, bytes);
  memset(s->ops, 0, bytes);
  char *defaults = (char *)s->ops + head;
  lua_rawset(L, -3);
  lua_pop(L, 1);
  for (int id = 0; id < LM_OP_COUNT; id++) {
    const lm_op *op = &lm_ops[id];
    lm_op_reading *r = &s->ops[id];
    lm_op_defaults(id, defaults);
    r->defaults = defaults;
    defaults += lm_round_up((size_t)op->size, 8);
    for (int i = 0; i < op->nargs; i++) {
      r->key[i] = intern(L, op->arg[i].name);
      if (lm_arg_words[op->arg[i].kind].required) r->required |= 1u << i;
    }
    if (op->npositional == 0) continue;
    const lm_arg *last = &op->arg[op->npositional - 1];
    r->variadic = last->kind == LM_ARG_SIZE || last->kind == LM_ARG_SIZE_OPT ||
                  (last->kind == LM_ARG_DIMS_OPT && strcmp(last->name, "dims") == 0);
  }
  s->key_requires_grad = intern(L, "requires_grad");
  s->device_cpu = intern(L, "cpu");
  for (int d = 0; d < LM_DTYPE_COUNT; d++) s->dtype_name[d] = intern(L, lm_dtype_name((lm_dtype)d));
}

static int close_state(lua_State *L) {
  lm_lua *s = lua_touserdata(L, 1);
  lm_callbacks_close(s->callbacks);
  s->callbacks = NULL;
  lm_release_deferred(s);
  return 0;
}

/* ---- closures: upvalue 1 is the state (stack index 2), 2 the metatable (3), then the `extra` values on top */
enum { STATE = 2, METATABLE = 3, METHODS = 4, OPS = 5, MODULE = 6 };

static void push_closure(lua_State *L, lua_CFunction f, int extra) {
  lua_pushvalue(L, STATE);
  lua_insert(L, -1 - extra);
  lua_pushvalue(L, METATABLE);
  lua_insert(L, -1 - extra);
  lua_pushcclosure(L, f, 2 + extra);
}

static void set_function(lua_State *L, int table, const char *name, lua_CFunction f) {
  push_closure(L, f, 0);
  lua_setfield(L, table, name);
}

LM_LIST(lm_functions);
LM_LIST(lm_methods);
LM_LIST(lm_metamethods);

static void set_functions(lua_State *L, int table, const luaL_Reg *row, const luaL_Reg *end) {
  for (; row < end; row++) set_function(L, table, row->name, row->func);
}

static void push_op(lua_State *L, lm_op_id id, lua_CFunction f) {
  lua_pushlightuserdata(L, (void *)&lm_ops[id]);
  push_closure(L, f, 1);
}

static void set_ops(lua_State *L) {
  for (int id = 0; id < LM_OP_COUNT; id++) {
    const lm_op *op = &lm_ops[id];
    lm_arg_kind first = op->nargs > 0 ? op->arg[0].kind : LM_ARG_F;
    bool method = first == LM_ARG_T || first == LM_ARG_S;
    push_op(L, (lm_op_id)id, lm_bind_op);
    if (method) {
      lua_pushvalue(L, -1);
      lua_setfield(L, METHODS, op->name);
    }
    lua_setfield(L, OPS, op->name);
    if (!lm_has_in_place(op)) continue;
    lua_pushfstring(L, "%s_", op->name);
    push_op(L, (lm_op_id)id, lm_bind_op_in_place);
    lua_pushvalue(L, -2);
    lua_pushvalue(L, -2);
    lua_rawset(L, METHODS);
    lua_rawset(L, OPS);
  }
}

/* Adds the names that stand for several ops. */
static void set_overloads(lua_State *L) {
  for (const lm_overload *o = lm_overloads; o->name; o++) {
    int tables[] = {METHODS, lm_op_find(o->name) >= 0 ? OPS : MODULE};
    for (int i = 0; i < 2; i++) {
      lua_pushlightuserdata(L, (void *)o);
      push_closure(L, lm_bind_overload, 1);
      lua_setfield(L, tables[i], o->name);
    }
  }
  for (int table = METHODS; table <= OPS; table++) set_function(L, table, "nonzero", lm_bind_nonzero);
  set_function(L, OPS, "where", lm_bind_where);
}

static void set_metamethods(lua_State *L) {
  static const struct {
    const char *name;
    lm_op_id op;
  } arith[] = {{"__add", LM_OP_add}, {"__sub", LM_OP_sub}, {"__mul", LM_OP_mul},      {"__div", LM_OP_div},
               {"__pow", LM_OP_pow}, {"__unm", LM_OP_neg}, {"__mod", LM_OP_remainder}};
  for (size_t i = 0; i < sizeof arith / sizeof *arith; i++) {
    push_op(L, arith[i].op, lm_bind_arith);
    lua_setfield(L, METATABLE, arith[i].name);
  }
  set_functions(L, METATABLE, __start_lm_metamethods, __stop_lm_metamethods);
  set_function(L, METATABLE, "__newindex", lm_bind_newindex);
  lua_pushvalue(L, METHODS);
  lm_push_getters(L);
  push_closure(L, lm_bind_index, 2);
  lua_setfield(L, METATABLE, "__index");
  lua_pushliteral(L, "luminary.tensor");
  lua_setfield(L, METATABLE, "__metatable");
}

static void make_tables(lua_State *L) {
  static const char *const empty[] = {&lm_reg_sites, &lm_reg_strong, &lm_reg_warned, &lm_reg_ported};
  for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
    lua_newtable(L);
    lm_reg_set(L, empty[i]);
  }
  lua_pushliteral(L, "stack overflow: scopes, hooks or backward passes are nested too deep in one another");
  lm_reg_set(L, &lm_reg_too_deep);
  lua_createtable(L, 2, 0);
  lm_reg_set(L, &lm_reg_traceback);
  lua_pushcfunction(L, lm_note_traceback);
  lm_reg_set(L, &lm_reg_noting);
  lua_createtable(L, 0, 2);
  for (const char *const *name = (const char *const[]){"pcall", "xpcall", NULL}; *name; name++) {
    lua_getglobal(L, *name);
    if (lua_isnil(L, -1)) lua_pushboolean(L, 0); /* the host lacks it */
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
  }
  lm_reg_set(L, &lm_reg_catchers);
  lm_watch_python_names(L);
  lua_createtable(L, 1, 0);
  lua_pushboolean(L, 0);
  lua_rawseti(L, -2, 1); /* makes the slot: storing an error there allocates nothing */
  lm_reg_set(L, &lm_reg_error);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lm_reg_set(L, &lm_reg_weak);
}

static void make_state(lua_State *L) {
  lm_lua *s = lua_newuserdata(L, sizeof *s);
  memset(s, 0, sizeof *s);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, close_state);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  if (lm_callbacks_new(s, &s->callbacks) != LM_OK) lm_raise(L, LM_E_OOM);
  describe_ops(L, s);
}

/* Raises an error if another copy of this module is in use in the process. */
static void claim_process(lua_State *L) {
  static lm_module_copy own = {.version = LM_VERSION};
  Dl_info file;
  if (!dladdr(&own, &file)) return;
  own.path = file.dli_fname;
  const lm_module_copy *first = lm_claim_process(&own);
  if (first == &own) return;
  luaL_error(
      L,
      "luminary: version %s, '%s', is in use in this process, which cannot load a second copy, version %s, '%s'; "
      "set the same package.cpath in all Lua states",
      first->version, first->path, own.version, own.path);
}

LM_API int luaopen_luminary_core(lua_State *L);
int luaopen_luminary_core(lua_State *L) {
  lm_reg_get(L, &lm_reg_module);
  if (!lua_isnil(L, -1)) return 1; /* required again: one state, one metatable */
  lua_settop(L, 0);
  luaL_checkstack(L, 24, "luminary");
  claim_process(L); /* first: this copy may have been linked to the other's library */
  enum { NEEDED = 64 /* KB */, ROUNDED = 8 /* KB; some C libraries subtract the guard pages */ };
  const size_t stack = lm_stack_size() >> 10;
  if (stack + ROUNDED < NEEDED) {
    return luaL_error(L, "luminary: the stack of this thread, of %d KB, is too small; it needs %d KB", (int)stack,
                      NEEDED);
  }
  if (!lm_backend_of(LM_DEVICE(LM_CPU, 0))) {
    return luaL_error(L,
                      "luminary: this build needs vector instructions (AVX2, AVX-512) that this CPU lacks or "
                      "LM_CPU_LEVEL excludes; run scripts/setup on this machine, or scripts/setup --release to build "
                      "for every CPU");
  }
  lm_lua_threads_at_exit();
  lua_newtable(L); /* 1: strings kept alive */
  lua_pushvalue(L, 1);
  lm_reg_set(L, &lm_reg_anchor);
  make_tables(L);
  make_state(L);                    /* 2 */
  lua_createtable(L, LM_SIZES, 24); /* 3: the tensors' metatable */
  lua_newtable(L);                  /* 4: methods */
  lua_newtable(L);                  /* 5: ops */
  lua_newtable(L);                  /* 6: the module */
  lm_load_int64_cdata(L);
  push_closure(L, lm_bind_protected, 0);
  lm_reg_set(L, &lm_reg_protected);
  push_closure(L, lm_bind_host_call, 0);
  lm_reg_get(L, &lm_reg_catchers);
  lua_pushvalue(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, LM_HOST_CALL);
  set_ops(L);
  set_functions(L, METHODS, __start_lm_methods, __stop_lm_methods);
  set_metamethods(L);
  set_functions(L, MODULE, __start_lm_functions, __stop_lm_functions);
  set_overloads(L);
  lua_getfield(L, MODULE, "backward");
  lua_setfield(L, METHODS, "backward");
  push_closure(L, lm_bind_scope_body, 0);
  lua_pushvalue(L, -1);
  push_closure(L, lm_bind_scope, 1);
  lua_setfield(L, MODULE, "scope");
  push_closure(L, lm_bind_call_own, 1);
  lua_setfield(L, MODULE, "call_own");
  lua_pushvalue(L, METHODS);
  lua_setfield(L, MODULE, "methods");
  lm_push_getters(L);
  lua_setfield(L, MODULE, "tensor_fields");
  lua_pushvalue(L, OPS);
  lua_setfield(L, MODULE, "ops");
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, MODULE, "sizes");
  lua_rawseti(L, METATABLE, LM_SIZES);
  lua_pushliteral(L, LM_VERSION);
  lua_setfield(L, MODULE, "version");
  lua_pushvalue(L, MODULE);
  lm_reg_set(L, &lm_reg_module);
  return 1;
}
