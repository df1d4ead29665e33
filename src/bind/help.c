/* What ops.lua says about an op, as text. */
#include <math.h>
#include <stdio.h>

#include "bind/bind.h"
#include "op/backend.h"

static void add_default(luaL_Buffer *b, const lm_arg *a) {
  char text[64];
  if (a->kind == LM_ARG_B) {
    luaL_addstring(b, a->number != 0 ? " = true" : " = false");
  } else if (a->kind == LM_ARG_E) {
    snprintf(text, sizeof text, " = \"%s\"", a->names[(int)a->number]);
    luaL_addstring(b, text);
  } else if (a->kind == LM_ARG_F && isinf(a->number)) {
    luaL_addstring(b, a->number > 0 ? " = math.huge" : " = -math.huge");
  } else if (a->kind == LM_ARG_F || a->kind == LM_ARG_I ||
             ((a->kind == LM_ARG_I2 || a->kind == LM_ARG_PAD2) && a->number >= 0)) {
    snprintf(text, sizeof text, " = %.6g", a->number);
    luaL_addstring(b, text);
  } else if (a->kind == LM_ARG_T_OPT || a->kind == LM_ARG_S_OPT || a->kind == LM_ARG_I_OPT || a->kind == LM_ARG_F_OPT ||
             a->kind == LM_ARG_DIM_OPT || a->kind == LM_ARG_DIMS_OPT || a->kind == LM_ARG_SIZE_OPT ||
             a->kind == LM_ARG_DTYPE || a->kind == LM_ARG_DEVICE || a->kind == LM_ARG_GENERATOR) {
    luaL_addstring(b, " = nil");
  }
}

static void push_signature(lua_State *L, const lm_op *op, const char *name) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, name);
  luaL_addchar(&b, '(');
  for (int i = 0; i < op->nargs; i++) {
    if (i > 0) luaL_addstring(&b, ", ");
    if (i == op->npositional) luaL_addchar(&b, '{');
    luaL_addstring(&b, op->arg[i].name);
    add_default(&b, &op->arg[i]);
  }
  if (op->kind == LM_NEW) luaL_addstring(&b, op->nargs > op->npositional ? ", requires_grad = false" : "");
  luaL_addstring(&b, op->nargs > op->npositional ? "})" : ")");
  luaL_pushresult(&b);
}

/* help(name): signature with defaults, and what the op does; nil for what is no op. */
static int bind_help(lua_State *L) {
  const char *name = lm_to_text(L, 1);
  if (!name) return lm_raise_text(L, "help: the name of an op expected");
  int id = lm_op_find(name);
  size_t n = lua_objlen(L, 1);
  bool in_place = false;
  if (id < 0 && n > 1 && name[n - 1] == '_') { /* relu_ is relu in place */
    lua_pushlstring(L, name, n - 1);
    id = lm_op_find(lua_tostring(L, -1));
    in_place = id >= 0 && lm_ops[id].kind == LM_POINT;
    if (!in_place) id = -1;
  }
  if (id < 0) {
    lua_pushnil(L);
    return 1;
  }
  const lm_op *op = &lm_ops[id];
  push_signature(L, op, name);
  lua_pushliteral(L, "\n  ");
  lua_pushstring(L, op->help);
  lua_pushstring(L, in_place ? "; this one in place" : "");
  lua_concat(L, 4);
  return 1;
}

static int bind_op_list(lua_State *L) {
  lua_createtable(L, LM_OP_COUNT, 0);
  for (int i = 0; i < LM_OP_COUNT; i++) {
    lua_pushstring(L, lm_ops[i].name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void set_text(lua_State *L, const char *key, const char *text) {
  lua_pushstring(L, text);
  lua_setfield(L, -2, key);
}

static void set_flag(lua_State *L, const char *key, bool on) {
  lua_pushboolean(L, on);
  lua_setfield(L, -2, key);
}

/* op_info(name): {kind, gradient (nil: that of the ops it is made of), autocast, takes, gives, signature, kernel,
 * inner, cpu, cuda}; nil for what is no op. cuda is nil where there is no such backend; kernel: whether it needs one of
 * its own. */
static int bind_op_info(lua_State *L) {
  static const char *const kinds[] = {[LM_POINT] = "elementwise", [LM_PRIM] = "kernel", [LM_VIEW] = "view",
                                      [LM_WRITE] = "write",       [LM_NEW] = "new",     [LM_COMP] = "composite"};
  static const char *const casts[] = {[LM_ASIS] = "",
                                      [LM_LOWER] = "lower",
                                      [LM_KEEP] = "keep",
                                      [LM_KEEP_GPU] = "keep_gpu",
                                      [LM_BANNED_GPU] = "banned_gpu",
                                      [LM_WIDEST] = "widest"};
  static const char *const gives[] = {
      [LM_GIVES_SAME] = "", [LM_GIVES_FLOAT] = "float", [LM_GIVES_BOOL] = "bool", [LM_GIVES_NUMBER] = "number"};
  const char *name = lm_to_text(L, 1);
  int id = name ? lm_op_find(name) : -1;
  if (id < 0) {
    lua_pushnil(L);
    return 1;
  }
  const lm_op *op = &lm_ops[id];
  lua_createtable(L, 0, 11);
  set_text(L, "kind", kinds[op->kind]);
  set_text(L, "autocast", casts[op->cast]);
  if (op->grads) set_text(L, "gradient", op->grads);
  if (op->kind == LM_POINT) {
    set_text(L, "takes", op->integers ? "integers and bool" : op->not_bool ? "all but bool" : "all");
    set_text(L, "gives", op->gives == LM_GIVES_ARGUMENT ? op->arg[op->gives_of].name : gives[op->gives]);
  }
  push_signature(L, op, op->name);
  lua_setfield(L, -2, "signature");
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0)), *cuda = lm_backend_of(LM_DEVICE(LM_CUDA, 0));
  bool kernel = cpu && cpu->op[id];
  set_flag(L, "inner", op->inner);
  set_flag(L, "kernel", kernel);
  set_flag(L, "cpu", op->kind != LM_WRITE || kernel);
  if (cuda) set_flag(L, "cuda", !kernel || cuda->op[id]);
  return 1;
}

const luaL_Reg lm_help_functions[] = {{"help", bind_help},
                                      {"op_list", bind_op_list},
                                      {"op_info", bind_op_info},
                                      {"print_options", lm_bind_print_options},
                                      {NULL, NULL}};
