/* Calls any op from Lua: reads the call's values into the op's argument struct by the op's descriptor. */
#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

/* A call being decoded: the argument struct, and the tensors and the list to release after it. */
typedef struct frame {
  lm_op_id id;
  const lm_op *op;
  int top; /* arguments are at 1..top */
  bool in_place, requires_grad;
  bool all;    /* runs without recording, and returns hidden results too */
  bool shares; /* the result shares the first tensor's memory */
  int nowned;
  lm_tensor *owned[LM_MAX_ARGS]; /* 0-d tensors made of numbers */
  lm_tensor **list;              /* the tensors of the TL argument */
  uint32_t given;                /* bit i: argument i has a value */
  lm_args_union args;
} frame;

static void release_frame(frame *f) {
  for (int i = 0; i < f->nowned; i++) lm_release(f->owned[i]);
  lm_free(f->list);
  f->nowned = 0;
  f->list = NULL;
}

/* Reads argument `a` from the value at i. */
static lm_status read_arg(lua_State *L, const lm_lua *s, frame *f, const lm_arg *a, int i) {
  void *p = f->args.bytes + a->offset;
  lm_tensor *owned = NULL;
  lm_status status;
  if (a->kind == LM_ARG_S || a->kind == LM_ARG_S_OPT) {
    status = lm_read_scalar(L, s, i, f->op->name, a->name, p, &owned);
    if (owned) f->owned[f->nowned++] = owned;
    return status;
  }
  status = lm_read_arg(L, s, i, f->op->name, a, p);
  if (status == LM_OK && (a->kind == LM_ARG_TL || a->kind == LM_ARG_TL_HOLES)) f->list = ((lm_list *)p)->v;
  return status;
}

/* Returns whether the value at i is a table of options (string keys), not a list. An empty table is a list only if the
 * argument at i is a list of sizes, dims or tensors. */
static bool is_options(lua_State *L, const lm_op *op, int i) {
  if (lua_type(L, i) != LUA_TTABLE || lua_objlen(L, i) > 0) return false;
  lua_pushnil(L);
  if (lua_next(L, i)) {
    bool named = lua_type(L, -2) == LUA_TSTRING;
    lua_pop(L, 2);
    return named;
  }
  if (i > op->npositional) return true;
  lm_arg_kind kind = op->arg[i - 1].kind;
  return !(kind == LM_ARG_SIZE || kind == LM_ARG_SIZE_OPT || kind == LM_ARG_TL || kind == LM_ARG_TL_HOLES ||
           kind == LM_ARG_DIMS_OPT || kind == LM_ARG_PADS);
}

/* Fails for the option whose key is at -2. */
static lm_status fail_unknown_option(lua_State *L, const lm_op *op) {
  const char *names[LM_MAX_ARGS + 1];
  int n = 0;
  for (int i = 1; i < op->nargs; i++) names[n++] = op->arg[i].name;
  if (op->kind == LM_NEW) names[n++] = "requires_grad";
  lm_status status = lm_fail_key(L, -2, op->name, n, names);
  const char *key = lm_to_text(L, -2);
  if (key && strcmp(key, "out") == 0 && lm_has_in_place(op)) {
    return lm_fail(status, "%s, x:%s_(…) writes in place", lm_error(), op->name);
  }
  return status;
}

static lm_status read_options(lua_State *L, const lm_lua *s, frame *f, int table) {
  const lm_op *op = f->op;
  const char *const *key = s->ops[f->id].key;
  lm_status status = LM_OK;
  bool empty = true;
  lua_pushnil(L);
  while (lua_next(L, table)) {
    empty = false;
    if (lua_type(L, -2) != LUA_TSTRING) {
      TRY(lm_fail_value(op->name, "the table at the end", "named options or a list", "a mix of both"));
    }
    const char *given = lua_tostring(L, -2); /* interned: equal strings have equal addresses */
    int i = 1, value = lua_gettop(L);
    while (i < op->nargs && key[i] != given) i++;
    if (i < op->nargs) {
      if (f->given & 1u << i) TRY(lm_fail_twice(op->name, given));
      f->given |= 1u << i;
      TRY(read_arg(L, s, f, &op->arg[i], value));
    } else if (given == s->key_requires_grad && op->kind == LM_NEW) {
      TRY(lm_read_boolean(L, s, value, op->name, "requires_grad", &f->requires_grad));
    } else {
      TRY(fail_unknown_option(L, op));
    }
    lua_pop(L, 1);
  }
  return empty ? lm_check_empty(L, table, op->name, "options") : LM_OK;
done:
  lua_pop(L, 2);
  return status;
}

static void show_value(lua_State *L, int i, const char *name, char *out, size_t bytes) {
  switch (lua_type(L, i)) {
    case LUA_TNUMBER: lm_write(out, bytes, "%.14g", lua_tonumber(L, i)); break;
    case LUA_TBOOLEAN: snprintf(out, bytes, "%s", lua_toboolean(L, i) ? "true" : "false"); break;
    case LUA_TSTRING: snprintf(out, bytes, "\"%s\"", lm_ellipsize(lua_tostring(L, i), 40)); break;
    default: snprintf(out, bytes, "%s", name);
  }
}

/* Returns whether the value at i may be meant for an option of that kind. */
static bool may_be(lua_State *L, int i, lm_arg_kind kind) {
  switch (lua_type(L, i)) {
    case LUA_TNUMBER:
      return kind == LM_ARG_F || kind == LM_ARG_F_OPT || kind == LM_ARG_I || kind == LM_ARG_I_OPT ||
             kind == LM_ARG_S_OPT;
    case LUA_TBOOLEAN: return kind == LM_ARG_B;
    case LUA_TSTRING: return kind == LM_ARG_DTYPE || kind == LM_ARG_DEVICE || kind == LM_ARG_E;
    default: return false;
  }
}

/* Fails with "sub: alpha is an option: x:sub(other, {alpha = 2})", or with the number of arguments. */
static lm_status fail_too_many(lua_State *L, const frame *f, int given) {
  const lm_op *op = f->op;
  int positional = op->npositional;
  char call[200], value[64];
  size_t used = 0;
  if (op->nargs == positional || !may_be(L, positional + 1, op->arg[positional].kind)) {
    for (int i = 0; i < positional && used < sizeof call; i++) {
      used += (size_t)snprintf(call + used, sizeof call - used, "%s%s", i ? ", " : ": ", op->arg[i].name);
    }
    bool sizes = op->kind == LM_NEW && positional > 1 && op->arg[0].kind == LM_ARG_SIZE;
    lm_status status = lm_fail_too_many(op->name, positional, "argument", given);
    return lm_fail(status, "%s%s%s", lm_error(), positional ? call : "",
                   sizes ? "; several sizes are one list: {2, 3}" : "");
  }
  bool method = op->kind != LM_NEW && op->arg[0].kind != LM_ARG_TL;
  used = (size_t)snprintf(call, sizeof call, method ? "x:%s(" : "lm.%s(", op->name);
  for (int i = method ? 1 : 0; i < positional && used < sizeof call; i++) {
    show_value(L, i + 1, op->arg[i].name, value, sizeof value);
    used += (size_t)snprintf(call + used, sizeof call - used, "%s, ", value);
  }
  const char *option = op->arg[positional].name;
  show_value(L, positional + 1, "…", value, sizeof value);
  return lm_fail(LM_E_ARG, "%s: %s is an option: %.*s{%s = %s})", op->name, option,
                 (int)(used < sizeof call ? used : sizeof call - 1), call, option, value);
}

static lm_status fail_missing(lua_State *L, const lm_lua *s, const frame *f, uint32_t bits) {
  int i = __builtin_ctz(bits);
  const lm_arg *a = &f->op->arg[i];
  const char *name = f->op->name, *bound = lm_arg_words[a->kind].required;
  const bool passed = i < f->top; /* nil was passed, rather than no value */
  lm_status status =
      passed ? lm_fail_value(name, a->name, bound, lm_describe_arg(L, s, i + 1)) : lm_fail_absent(name, a->name, bound);
  return lm_fail(status, "%s%s", lm_error(), lm_dot_hint(L, name, a->name, passed ? LUA_TNIL : LUA_TNONE));
}

static lm_status read_op_arguments(lua_State *L, const lm_lua *s, frame *f) {
  const lm_op *op = f->op;
  int positional = op->npositional, top = f->top, options = 0;
  memcpy(f->args.bytes, s->ops[f->id].defaults, op->size);
  while (top > 0 && lua_isnil(L, top)) top--;
  if (top > 0 && is_options(L, op, top) && (top > 1 || op->kind == LM_NEW)) options = top--;
  for (int i = 0; i < positional && i < top; i++) {
    const lm_arg *a = &op->arg[i];
    if (i == positional - 1 && s->ops[f->id].variadic && lua_type(L, i + 1) == LUA_TNUMBER) {
      lm_ints *v = (lm_ints *)(f->args.bytes + a->offset);
      if (top - i > LM_MAX_DIMS) {
        return lm_fail_value(op->name, a->name, lm_text("a list of at most %d entries", LM_MAX_DIMS),
                             lm_text("%d", top - i));
      }
      for (v->n = 0; i + v->n < top; v->n++) {
        NEED(a->kind == LM_ARG_DIMS_OPT ? lm_read_dim(L, s, i + 1 + v->n, op->name, a->name, &v->v[v->n])
                                        : lm_read_int(L, s, i + 1 + v->n, op->name, a->name, &v->v[v->n]));
      }
      f->given |= 1u << i;
      top = i + 1;
    } else if (!lua_isnil(L, i + 1)) {
      NEED(read_arg(L, s, f, a, i + 1));
      f->given |= 1u << i;
    }
  }
  if (top > positional) return fail_too_many(L, f, top);
  if (options) NEED(read_options(L, s, f, options));
  uint32_t lacking = s->ops[f->id].required & ~f->given;
  if (lacking) return fail_missing(L, s, f, lacking);
  return LM_OK;
}

static lm_status attempt_op(lua_State *L, lm_lua *s, frame *f, lm_tensor **out) {
  lm_status status;
  f->nowned = 0;
  f->list = NULL;
  f->given = 0;
  f->requires_grad = false;
  s->reads_for_op = !f->all;
  status = read_op_arguments(L, s, f);
  s->reads_for_op = false;
  TRY(status);
  TRY(f->all ? lm_op_run(f->id, f->args.bytes, out) : lm_call_by_script(f->id, f->args.bytes, f->in_place, out));
  if (f->requires_grad) {
    status = lm_settle();
    if (status == LM_OK) status = lm_set_requires_grad(out[0], true);
    if (status != LM_OK) lm_release(lm_tensor_take(&out[0]));
  }
  const lm_tensor *x = f->op->ntensor ? LM_ARG_TENSOR(f->args.bytes, f->op->tensor[0]) : NULL;
  f->shares = status == LM_OK && x && x->storage == out[0]->storage;
done:
  release_frame(f);
  return status;
}

static int run_bound_op(lua_State *L, lm_op_id id, bool in_place, bool all) {
  lm_lua *s = LM_STATE(L);
  const lm_op *op = &lm_ops[id];
  frame f;
  f.id = id;
  f.op = op;
  f.top = lua_gettop(L);
  f.in_place = in_place;
  f.all = all;
  const int outs = op->outs + (all ? op->aux : 0);
  bool writes = in_place || op->kind == LM_WRITE;
  lm_gc_step_if_due(L, s);
  lm_tensor_handle *handle[LM_MAX_OUTS];
  lm_tensor *out[LM_MAX_OUTS] = {NULL};
  for (int i = 0; i < outs && !writes; i++) handle[i] = lm_tensor_handle_new(L);
  lm_status status = attempt_op(L, s, &f, out);
  if (status == LM_E_OOM) {
    lm_collect_all(L);
    status = attempt_op(L, s, &f, out);
  }
  if (status != LM_OK) return lm_raise(L, status);
  if (lm_is_porting()) lm_check_ported(L, id, f.args.bytes, f.given, out[0]);
  if (op->kind == LM_COMP) lm_show_warning(L);
  if (f.top > 0 && outs == 1) { /* the result is x itself (a write, contiguous): returns x's handle */
    lm_tensor_handle *self = lm_to_tensor_handle(L, s, 1);
    if (self && self->t == out[0]) {
      lm_release(out[0]);
      lua_pushvalue(L, 1);
      return 1;
    }
  }
  if (writes) { /* the first argument was no tensor but a number */
    lm_release(out[0]);
    return lm_raise_arg(L, 1, op->name, op->arg[0].name, "a tensor to write to");
  }
  for (int i = 0; i < outs; i++) {
    if (!out[i]) {
      lua_pushnil(L);
      lua_replace(L, i - outs - 1);
      continue;
    }
    lm_tensor_handle_fill(s, handle[i], out[i]);
    if (!f.shares) lm_gc_step_count(s, out[i]);
  }
  return outs;
}

int lm_run_op(lua_State *L, lm_op_id id, bool in_place) { return run_bound_op(L, id, in_place, false); }

int lm_bind_op(lua_State *L) {
  const lm_op_id id = (lm_op_id)((const lm_op *)lua_touserdata(L, lua_upvalueindex(3)) - lm_ops);
  const int replacement = LM_STATE(L)->ops[id].replacement;
  if (!replacement) return lm_run_op(L, id, false);
  lua_rawgeti(L, LUA_REGISTRYINDEX, replacement);
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* Returns the op that the first argument names. */
static lm_op_id need_op(lua_State *L, const char *fn) {
  const char *name = lm_to_text(L, 1);
  const int id = name ? lm_op_find(name) : -1;
  if (id < 0) lm_raise_arg(L, 1, fn, "name", "the name of an op");
  return (lm_op_id)id;
}

/* run_op(name, ...) -> the results of an op that has a kernel, the hidden ones too, not recorded */
LM_FUNCTION(run_op) {
  const lm_op_id id = need_op(L, "run_op");
  if (lm_ops[id].kind != LM_PRIM) return lm_raise_arg(L, 1, "run_op", "name", "the name of an op with a kernel");
  lua_remove(L, 1);
  return run_bound_op(L, id, false, true);
}

/* replace_op(name, f) -> the function before, or nil: while f is not nil, Lua's calls of the op are calls of f. */
LM_FUNCTION(replace_op) {
  const lm_op_id id = need_op(L, "replace_op");
  int *replacement = &LM_STATE(L)->ops[id].replacement, before = *replacement;
  lua_settop(L, 2);
  lua_pushnil(L);
  if (before) lua_rawgeti(L, LUA_REGISTRYINDEX, before);
  lua_pushvalue(L, 2);
  *replacement = lua_isnil(L, 2) ? 0 : luaL_ref(L, LUA_REGISTRYINDEX);
  if (before) luaL_unref(L, LUA_REGISTRYINDEX, before);
  lua_settop(L, before ? 4 : 3);
  return 1;
}

int lm_bind_op_in_place(lua_State *L) {
  return lm_run_op(L, (lm_op_id)((const lm_op *)lua_touserdata(L, lua_upvalueindex(3)) - lm_ops), true);
}

/* ---- a + b: two operands, no options */
static lm_status attempt_arith(lua_State *L, lm_lua *s, lm_op_id id, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  lm_status status = LM_OK;
  lm_tensor *owned[LM_MAX_TENSOR_ARGS];
  int nowned = 0;
  lm_args_union args;
  memcpy(&args, s->ops[id].defaults, op->size);
  s->reads_for_op = true;
  for (int i = 0; i < op->npositional; i++) {
    lm_tensor **p = &LM_ARG_TENSOR(&args, op->arg[i].offset);
    *p = lm_to_tensor(L, s, i + 1);
    if (*p) continue;
    status = lm_read_scalar(L, s, i + 1, op->name, op->arg[i].name, p, &owned[nowned]);
    if (owned[nowned]) nowned++;
    if (status != LM_OK) break;
  }
  s->reads_for_op = false;
  if (status == LM_OK) status = lm_call_by_script(id, &args, false, out);
  while (nowned > 0) lm_release(owned[--nowned]);
  return status;
}

int lm_bind_arith(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_op_id id = (lm_op_id)((const lm_op *)lua_touserdata(L, lua_upvalueindex(3)) - lm_ops);
  lm_gc_step_if_due(L, s);
  lm_tensor_handle *handle = lm_tensor_handle_new(L);
  lm_tensor *out;
  lm_status status = attempt_arith(L, s, id, &out);
  if (status == LM_E_OOM) {
    lm_collect_all(L);
    status = attempt_arith(L, s, id, &out);
  }
  if (status != LM_OK) return lm_raise(L, status);
  lm_tensor_handle_fill(s, handle, out);
  lm_gc_step_count(s, out);
  return 1;
}
