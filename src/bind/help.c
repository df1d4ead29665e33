/* Describes ops to Lua by their declarations in ops.lua: op_list and op_info. */
#include <math.h>
#include <stdio.h>

#include "bind/bind.h"
#include "op/kernels.h"
#include "op_entries.h"

/* Returns an argument's default as Lua writes it: "nil" if it is optional without a default, NULL if it is required.
 * The result may lie in `text`. */
static const char *default_of(const lm_arg *a, char text[static 64]) {
  switch (a->kind) {
    case LM_ARG_B: return a->number != 0 ? "true" : "false";
    case LM_ARG_E: snprintf(text, 64, "\"%s\"", a->names[(int)a->number]); return text;
    case LM_ARG_F:
      if (isinf(a->number)) return a->number > 0 ? "math.huge" : "-math.huge";
      break;
    case LM_ARG_I: break;
    case LM_ARG_I2:
    case LM_ARG_PAD2:
      if (a->number < 0) return NULL;
      break;
    default: return lm_arg_words[a->kind].required ? NULL : "nil";
  }
  lm_write(text, 64, "%.6g", a->number);
  return text;
}

/* lua_functions(t) -> the keys of t's functions that are written in Lua. A loop in Lua with debug.getinfo would take a
 * fifth of the time of require. */
LM_FUNCTION(lua_functions) {
  int n = 0;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
    if (!lua_isfunction(L, 4) || lua_iscfunction(L, 4)) continue;
    lua_pushvalue(L, 3);
    lua_rawseti(L, 2, ++n);
  }
  return 1;
}

LM_FUNCTION(op_list) {
  lua_createtable(L, LM_OP_COUNT, 0);
  for (int i = 0; i < LM_OP_COUNT; i++) {
    lua_pushstring(L, lm_ops[i].name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* Pushes a list of {name, type, default (nil if required), choices, named (true if it is only given by name)}. */
static void push_arguments(lua_State *L, const lm_op *op) {
  char text[64];
  int tensors = 0;
  lua_createtable(L, op->nargs, 0);
  for (int i = 0; i < op->nargs; i++) {
    const lm_arg *a = &op->arg[i];
    bool tensor = a->kind == LM_ARG_T || a->kind == LM_ARG_T_OPT || a->kind == LM_ARG_S || a->kind == LM_ARG_S_OPT;
    bool mask = tensor && op->masks >> tensors & 1;
    tensors += tensor;
    lua_createtable(L, 0, 5);
    lm_set_text(L, "name", a->name);
    lm_set_text(L, "type", mask ? "bool tensor" : lm_arg_words[a->kind].type);
    const char *value = default_of(a, text);
    if (value) lm_set_text(L, "default", value);
    if (i >= op->npositional) lm_set_flag(L, "named", true);
    if (a->names) {
      lua_newtable(L);
      for (int k = 0; a->names[k]; k++) {
        lua_pushstring(L, a->names[k]);
        lua_rawseti(L, -2, k + 1);
      }
      lua_setfield(L, -2, "choices");
    }
    lua_rawseti(L, -2, i + 1);
  }
}

/* op_info(name): {kind, gradient (nil: that of the ops it calls), autocast, takes, result_dtype, help, arguments,
 * results (their number), kernel (whether it has its own), internal, cpu, cuda (nil without that backend)}; nil if no
 * op has that name */
LM_FUNCTION(op_info) {
  static const char *const kinds[] = {[LM_POINTWISE] = "elementwise", [LM_PRIM] = "kernel", [LM_VIEW] = "view",
                                      [LM_WRITE] = "write",           [LM_NEW] = "new",     [LM_COMP] = "composite"};
  static const char *const casts[] = {[LM_ASIS] = "",
                                      [LM_LOWER] = "lower",
                                      [LM_KEEP] = "keep",
                                      [LM_KEEP_RESULT] = "keep_result",
                                      [LM_KEEP_GPU] = "keep_gpu",
                                      [LM_BANNED_GPU] = "banned_gpu",
                                      [LM_WIDEST] = "widest"};
  static const char *const result_dtype[] = {[LM_RESULT_DTYPE_SAME] = "",
                                             [LM_RESULT_DTYPE_FLOAT] = "float",
                                             [LM_RESULT_DTYPE_BOOL] = "bool",
                                             [LM_RESULT_DTYPE_NUMBER] = "number"};
  const char *name = lm_to_text(L, 1);
  int id = name ? lm_op_find(name) : -1;
  if (id < 0) {
    lua_pushnil(L);
    return 1;
  }
  const lm_op *op = &lm_ops[id];
  lua_createtable(L, 0, 13);
  lm_set_text(L, "kind", kinds[op->kind]);
  lm_set_text(L, "autocast", casts[op->cast]);
  if (op->grads) lm_set_text(L, "gradient", op->grads);
  if (op->kind == LM_POINTWISE) {
    lm_set_text(L, "takes", op->integers ? "integers and bool" : op->not_bool ? "all but bool" : "all");
    lm_set_text(L, "result_dtype",
                op->result_dtype == LM_RESULT_DTYPE_ARGUMENT ? op->arg[op->result_dtype_arg].name
                                                             : result_dtype[op->result_dtype]);
  }
  lm_set_text(L, "help", op->help);
  push_arguments(L, op);
  lua_setfield(L, -2, "arguments");
  lm_set_number(L, "results", op->outs);
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0)), *cuda = lm_backend_of(LM_DEVICE(LM_CUDA, 0));
  bool kernel = cpu && cpu->op[op->slot];
  lm_set_flag(L, "internal", op->internal);
  lm_set_flag(L, "kernel", kernel);
  lm_set_flag(L, "cpu", op->kind != LM_WRITE || kernel);
  if (cuda) lm_set_flag(L, "cuda", !kernel || cuda->op[op->slot]);
  return 1;
}
