/* Records the ops that a function calls, for plans and for writers of model files:
 *
 *   record_ops(f, inputs) -> tape, f's results     calls f(list); inputs: a list of tensors; list: new tensors over
 *                                                  their memory, which are the recording's inputs
 *   tape:steps() -> steps, values                  in the order of the calls
 *   tape:id(t) -> the index in values of a tensor of the recording, or nil
 *   tape:close()   frees the tensors of the recording
 *   tape:refusal() -> a sentence that says why the steps do not stand for f, or nil
 *
 * A step is {op, in_place, dynamic, random, line, inputs = {name = id, or a list of ids, false for a hole},
 * attributes = {name = value}, outputs = {id, or false}}. Dims count from 0 or, negative, from the end; Lua numbers
 * that an op took as tensors are attributes. A value is {tensor, dtype, shape, input = i, step = i}: a value without
 * `input` and `step` was made outside of the function, as parameters are, or of Lua values. */
#include <math.h>

#include "base/mem.h"
#include "bind/autograd/recording.h"
#include "bind/bind.h"

enum { VALUES = 3, IDS = 4 }; /* stack indices in tape_steps: the list of values, and from addresses to indices */

static void push_handle(lua_State *L, lm_tensor *t) {
  lm_tensor_handle *b = lm_tensor_handle_new(L);
  lm_tensor_handle_fill(LM_STATE(L), b, lm_retain(t));
}

/* Pushes the index of t's value, which is added to the list if it is new. */
static void push_id(lua_State *L, lm_tensor *t) {
  lua_pushlightuserdata(L, t);
  lua_rawget(L, IDS);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  const int id = (int)lua_objlen(L, VALUES) + 1;
  lua_createtable(L, 0, 5);
  push_handle(L, t);
  lua_setfield(L, -2, "tensor");
  lm_set_text(L, "dtype", lm_dtype_name(t->dtype));
  lm_push_sizes(L, t->ndim, t->size);
  lua_setfield(L, -2, "shape");
  lua_rawseti(L, VALUES, id);
  lua_pushlightuserdata(L, t);
  lua_pushinteger(L, id);
  lua_rawset(L, IDS);
  lua_pushinteger(L, id);
}

static void push_id_or_false(lua_State *L, lm_tensor *t) {
  if (t) {
    push_id(L, t);
  } else {
    lua_pushboolean(L, false);
  }
}

/* Sets field `field` of the value whose index is on top to i, unless it has `input` or `step`. */
static void set_origin(lua_State *L, const char *field, int i) {
  lua_rawgeti(L, VALUES, (int)lua_tointeger(L, -1));
  const bool is_known = lm_field(L, lua_gettop(L), "input") || lm_field(L, lua_gettop(L), "step");
  if (is_known) lua_pop(L, 1);
  if (!is_known) lm_set_number(L, field, i);
  lua_pop(L, 1);
}

static void push_ints(lua_State *L, int n, const int64_t *v) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushnumber(L, (double)v[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Pushes the value of an argument that is no tensor; nil if it was left out and has no default. */
static void push_attribute(lua_State *L, const lm_arg *a, const void *p) {
  const int64_t whole = a->kind == LM_ARG_I || a->kind == LM_ARG_I_REQ || a->kind == LM_ARG_I_OPT ||
                                a->kind == LM_ARG_DIM || a->kind == LM_ARG_DIM_OPT
                            ? *(const int64_t *)p
                            : 0;
  const lm_ints *ints = p;
  const int64_t *pair = p;
  switch (a->kind) {
    case LM_ARG_F:
    case LM_ARG_F_REQ:
    case LM_ARG_F_OPT:
      if (a->kind == LM_ARG_F_OPT && isnan(*(const double *)p)) break;
      lua_pushnumber(L, *(const double *)p);
      return;
    case LM_ARG_I:
    case LM_ARG_I_REQ:
    case LM_ARG_I_OPT:
    case LM_ARG_DIM:
    case LM_ARG_DIM_OPT:
      if (whole == LM_NO_INT || ((a->kind == LM_ARG_DIM || a->kind == LM_ARG_DIM_OPT) && whole == LM_NO_DIM)) break;
      lua_pushnumber(L, (double)whole);
      return;
    case LM_ARG_B: lua_pushboolean(L, *(const bool *)p); return;
    case LM_ARG_I2:
    case LM_ARG_PAD2:
      if (a->kind == LM_ARG_PAD2 && pair[0] == LM_PAD_SAME) {
        lua_pushliteral(L, "same");
        return;
      }
      if (pair[0] == LM_NO_INT) break;
      push_ints(L, 2, pair);
      return;
    case LM_ARG_DIMS_OPT:
    case LM_ARG_SIZE:
    case LM_ARG_SIZE_OPT:
      if (ints->n < 0) break;
      push_ints(L, ints->n, ints->v);
      return;
    case LM_ARG_PADS: {
      const lm_pads *pads = p;
      if (pads->n < 0) break;
      push_ints(L, pads->n, pads->v);
      return;
    }
    case LM_ARG_DTYPE:
      if (*(const lm_dtype *)p == LM_NO_DTYPE) break;
      lua_pushstring(L, lm_dtype_name(*(const lm_dtype *)p));
      return;
    case LM_ARG_DEVICE:
      if (*(const lm_device *)p == LM_NO_DEVICE) break;
      lua_pushstring(L, lm_device_name(*(const lm_device *)p));
      return;
    case LM_ARG_E: lua_pushstring(L, a->names[*(const int *)p]); return;
    default: break;
  }
  lua_pushnil(L);
}

/* Sets argument `a` in the step's `inputs`, below the top, or its `attributes`, at the top. */
static void set_argument(lua_State *L, const lm_arg *a, char *args) {
  char *p = args + a->offset;
  const int attributes = lua_gettop(L), inputs = attributes - 1;
  if (a->kind == LM_ARG_T || a->kind == LM_ARG_T_OPT || a->kind == LM_ARG_S || a->kind == LM_ARG_S_OPT) {
    lm_tensor *t = *(lm_tensor **)p;
    double number;
    if (!t) return;
    if (t->number && lm_tensor_item_f64(t, &number) == LM_OK) {
      lua_pushnumber(L, number);
      lua_setfield(L, attributes, a->name);
      return;
    }
    push_id(L, t);
    lua_setfield(L, inputs, a->name);
  } else if (a->kind == LM_ARG_TL || a->kind == LM_ARG_TL_HOLES) {
    const lm_list *list = (const lm_list *)p;
    lua_createtable(L, list->n, 0);
    for (int i = 0; i < list->n; i++) {
      push_id_or_false(L, list->v[i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, inputs, a->name);
  } else {
    push_attribute(L, a, p);
    lua_setfield(L, attributes, a->name);
  }
}

static void push_step(lua_State *L, const lm_tape_step *s, int i) {
  const lm_op *op = &lm_ops[s->op];
  lua_createtable(L, 0, 8);
  lm_set_text(L, "op", op->name);
  lm_set_flag(L, "in_place", s->in_place || op->kind == LM_WRITE);
  lm_set_flag(L, "dynamic", s->dynamic);
  lm_set_flag(L, "random", lm_call_is_random(s->op, s->args));
  lm_set_text(L, "line", s->line);
  lua_newtable(L);
  lua_newtable(L);
  for (int k = 0; k < op->nargs; k++) set_argument(L, &op->arg[k], s->args);
  lua_setfield(L, -3, "attributes");
  lua_setfield(L, -2, "inputs");
  lua_newtable(L);
  const int outs = s->in_place || op->kind == LM_WRITE ? 1 : op->outs;
  for (int k = 0; k < outs; k++) {
    push_id_or_false(L, s->out[k]);
    if (s->out[k]) set_origin(L, "step", i);
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, -2, "outputs");
}

LM_LIST(lm_methods_of_tape);
LM_HELD_TYPE(tape, lm_op_recording, lm_op_recording_free, "luminary.tape", "a recording of ops", LM_METHODS_OF(tape))

LM_OBJECT_METHOD(tape, steps, "steps", (tape, recording)) {
  const lm_tape *tape = recording->tape;
  luaL_checkstack(L, 24, "steps");
  lua_createtable(L, tape->nsteps, 0);
  lua_newtable(L); /* VALUES */
  lua_newtable(L); /* IDS */
  for (int i = 0; i < tape->ninputs; i++) {
    push_id(L, tape->input[i]);
    set_origin(L, "input", i + 1);
    lua_pop(L, 1);
  }
  for (int i = 0; i < tape->nsteps; i++) {
    push_step(L, &tape->step[i], i + 1);
    lua_rawseti(L, 2, i + 1);
  }
  lua_getfenv(L, 1); /* tape:id looks there */
  lua_pushvalue(L, IDS);
  lua_setfield(L, -2, "ids");
  lua_settop(L, VALUES);
  return 2;
}

LM_OBJECT_METHOD(tape, id, "id", (tape, recording), (tensor, t)) {
  lua_getfenv(L, 1);
  if (!lm_field(L, lua_gettop(L), "ids")) return lm_raise_text(L, "id: call tape:steps() first");
  lua_pushlightuserdata(L, t);
  lua_rawget(L, -2);
  return 1;
}

LM_OBJECT_METHOD(tape, refusal, "refusal", (tape, recording)) {
  return lm_return_text(L, recording->tape->refusal[0] ? recording->tape->refusal : NULL);
}

LM_OBJECT_METHOD(tape, close, "close") { return lm_object_close(L, &tape_type, "close"); }

lm_op_recording *lm_need_recorded(lua_State *L, int i, const char *fn, const char *arg) {
  return lm_need_tape(L, i, fn, arg);
}

static lm_status new_recording(lua_State *L, const lm_lua *s, lm_op_recording **out) {
  int n = 0;
  lm_tensor **inputs = NULL;
  lm_status status = lm_read_list(L, s, 2, "record_ops", "inputs", false, &n, &inputs);
  if (status == LM_OK) status = lm_op_recording_new(n, inputs, out);
  lm_free(inputs);
  return status;
}

LM_FUNCTION(record_ops) {
  lm_lua *s = LM_STATE(L);
  lm_need_function(L, 1, "record_ops", "");
  lua_settop(L, 2);
  lm_op_recording **r = lm_object_new(L, &tape_type);
  lua_newtable(L);
  lua_setfenv(L, -2);
  lm_need(L, new_recording(L, s, r));
  lua_replace(L, 2);
  lua_pushvalue(L, 1);
  lua_createtable(L, (*r)->tape->ninputs, 0);
  for (int i = 0; i < (*r)->tape->ninputs; i++) {
    push_handle(L, (*r)->tape->input[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lm_autocast_forget(); /* casts of weights are steps */
  lm_need(L, lm_op_recording_begin(*r));
  lm_lines_changed(s);
  int failed = lm_pcall(L, 1, LUA_MULTRET);
  lm_op_recording_end(*r);
  lm_lines_changed(s);
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

/* is_recording_ops() -> true, and the number of reasons to refuse it so far, while a function is recorded on this
 * thread */
LM_FUNCTION(is_recording_ops) {
  const lm_tape *tape = lm_tape_current();
  lua_pushboolean(L, tape != NULL);
  lua_pushinteger(L, tape ? tape->nrefusals : 0);
  return 2;
}

/* Returns true if t's values depend on the inputs of the function that is recorded on this thread. */
LM_FUNCTION(depends_on_inputs, (tensor, t)) {
  const lm_tape *tape = lm_tape_current();
  return lm_return_bool(L, tape && lm_tape_is_dynamic(tape, t));
}
