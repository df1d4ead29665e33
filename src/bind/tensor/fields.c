/* Reads and writes tensors' fields (x.name, x.name = value), and runs the operators that are not arithmetic. */
#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "op_entries.h"
#include "tensor/print.h"

/* ---- getters: each pushes one value. t may be freed as soon as something is allocated in Lua. */
static int get_shape(lua_State *L, lm_tensor *t) {
  lm_push_sizes(L, t->ndim, t->size);
  return 1;
}

static int get_dtype(lua_State *L, lm_tensor *t) { return lm_return_text(L, lm_dtype_name(t->dtype)); }

static int get_device(lua_State *L, lm_tensor *t) { return lm_return_text(L, lm_device_name(t->device)); }

static lm_status make_grad(lm_tensor *t, lm_tensor **out) {
  NEED(lm_settle_gradients());
  out[0] = lm_retain(lm_grad_of(t));
  return LM_OK;
}

static int get_requires_grad(lua_State *L, lm_tensor *t) { return lm_return_bool(L, lm_requires_grad(t)); }

static int get_is_leaf(lua_State *L, lm_tensor *t) { return lm_return_bool(L, lm_is_leaf(t)); }

static int get_is_cuda(lua_State *L, lm_tensor *t) { return lm_return_bool(L, LM_DEVICE_KIND(t->device) == LM_CUDA); }

static int get_ndim(lua_State *L, lm_tensor *t) { return lm_return_int(L, t->ndim); }

static lm_status make_T(lm_tensor *t, lm_tensor **out) {
  lm_permute_args a = {.x = t, .dims = {.n = t->ndim}};
  for (int i = 0; i < t->ndim; i++) a.dims.v[i] = t->ndim - 1 - i;
  return lm_call_by_script(LM_OP_permute, &a, false, out);
}

/* Transposes the last two dims. */
static lm_status make_mT(lm_tensor *t, lm_tensor **out) {
  if (t->ndim < 2) return lm_fail_value("mT", "x", "at least 2-d", lm_text("shape %s", lm_shape_of(t)));
  const lm_transpose_args a = {.x = t, .dim0 = t->ndim - 2, .dim1 = t->ndim - 1};
  return lm_call_by_script(LM_OP_transpose, &a, false, out);
}

static int get_grad_fn(lua_State *L, lm_tensor *t) {
  char copy[256]; /* a copy, since pushing may collect the graph that holds the text */
  const char *name = lm_grad_fn_name(t);
  if (name) snprintf(copy, sizeof copy, "%s", name);
  return lm_return_text(L, name ? copy : NULL);
}

static lm_status make_data(lm_tensor *t, lm_tensor **out) {
  return lm_call_by_script(LM_OP_detach, &(lm_detach_args){.x = t}, false, out);
}

static int get_itemsize(lua_State *L, lm_tensor *t) { return lm_return_int(L, (lua_Integer)lm_dtype_size(t->dtype)); }

static int get_nbytes(lua_State *L, lm_tensor *t) {
  return lm_return_number(L, (double)t->numel * (double)lm_dtype_size(t->dtype));
}

static int get_version(lua_State *L, lm_tensor *t) { return lm_return_number(L, lm_version(t)); }

/* Each has `get`, or `make` for a tensor that shares memory with t; `settles`: it needs what autograd knows of t. */
static const struct getter {
  const char *name;
  int (*get)(lua_State *L, lm_tensor *t);
  lm_status (*make)(lm_tensor *t, lm_tensor **out);
  bool settles;
} getters[] = {
    {"shape", get_shape, NULL, false},
    {"dtype", get_dtype, NULL, false},
    {"device", get_device, NULL, false},
    {"grad", NULL, make_grad, false},
    {"requires_grad", get_requires_grad, NULL, true},
    {"is_leaf", get_is_leaf, NULL, true},
    {"is_cuda", get_is_cuda, NULL, false},
    {"ndim", get_ndim, NULL, false},
    {"T", NULL, make_T, false},
    {"mT", NULL, make_mT, false},
    {"grad_fn", get_grad_fn, NULL, true},
    {"data", NULL, make_data, false},
    {"itemsize", get_itemsize, NULL, false},
    {"nbytes", get_nbytes, NULL, false},
    {"_version", get_version, NULL, true},
};
enum { GETTERS = sizeof getters / sizeof *getters };

/* Pushes a table from the getters' names to their indices, for one lookup at run time. */
void lm_push_getters(lua_State *L) {
  lua_createtable(L, 0, GETTERS);
  for (int i = 0; i < GETTERS; i++) {
    lua_pushinteger(L, i);
    lua_setfield(L, -2, getters[i].name);
  }
}

typedef struct getting {
  const struct getter *field;
  lm_tensor *out[LM_MAX_OUTS];
} getting;

static lm_status attempt_getting(lua_State *L, lm_lua *s, void *arg) {
  getting *g = arg;
  lm_tensor *t;
  s->reads_for_op = !g->field->settles;
  lm_status status = lm_read_tensor(L, s, 1, g->field->name, "x", &t);
  s->reads_for_op = false;
  return status == LM_OK ? g->field->make(t, g->out) : status;
}

/* Raises for a name that is neither method nor field, by the metatable of the methods' table (methods.lua). Names that
 * begin with "__" are nil, since other libraries look for metamethods. */
static int no_field(lua_State *L) {
  if (strncmp(lua_tostring(L, 2), "__", 2) == 0) return 0;
  lua_pushvalue(L, 2);
  lua_gettable(L, lua_upvalueindex(3));
  return 1;
}

int lm_bind_index(lua_State *L) {
  if (lua_type(L, 2) != LUA_TSTRING) return lm_index_get(L);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(3));
  if (!lua_isnil(L, -1)) return 1;
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(4));
  if (lua_isnil(L, -1)) return no_field(L);
  getting g = {.field = &getters[lua_tointeger(L, -1)]};
  const lm_tensor_handle *b = lm_to_tensor_handle(L, LM_STATE(L), 1); /* getters of values use lm_read_tensor */
  lm_tensor *t = b && b->t && !g.field->settles ? b->t : lm_need_tensor(L, 1, g.field->name, "x");
  return g.field->get ? g.field->get(L, t) : lm_return_tensors(L, 1, 1, attempt_getting, &g, g.out);
}

int lm_bind_newindex(lua_State *L) {
  if (lua_type(L, 2) != LUA_TSTRING) return lm_index_set(L);
  lm_lua *s = LM_STATE(L);
  const char *key = lm_to_text(L, 2);
  lm_tensor *value = NULL, *t = lm_need_tensor(L, 1, key ? key : "a field", "x");
  lm_status status;
  if (!key) {
    status = lm_fail_value("x[…] = value", "the key", "text without a NUL byte", lm_describe_arg(L, s, 2));
  } else if (strcmp(key, "requires_grad") == 0) {
    bool on;
    TRY(lm_read_boolean(L, s, 3, "requires_grad", "value", &on));
    TRY(lm_set_requires_grad(t, on));
  } else if (strcmp(key, "grad") == 0) {
    if (!lua_isnil(L, 3)) TRY(lm_read_tensor(L, s, 3, "grad", "value", &value));
    TRY(lm_set_grad(t, value));
  } else if (strcmp(key, "data") == 0) {
    TRY(lm_read_tensor(L, s, 3, "data", "value", &value));
    TRY(lm_set_data("data", t, value));
  } else {
    static const char *const settable[] = {"requires_grad", "grad", "data"};
    const char *near = lm_nearest(key, 3, settable);
    status =
        near ? lm_fail(LM_E_ARG, "tensors have no field '%s' that can be set; did you mean '%s'?",
                       lm_ellipsize(key, 60), near)
             : lm_fail(LM_E_ARG, "tensors have no field '%s' that can be set; fields are requires_grad, grad and data",
                       lm_ellipsize(key, 60));
  }
done:
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* ---- operators */
LM_METAMETHOD(__eq) {
  lm_lua *s = LM_STATE(L);
  lm_tensor *a = lm_to_shaped(L, s, 1), *b = lm_to_shaped(L, s, 2);
  return lm_return_bool(L, a && a == b);
}

LM_METAMETHOD(__lt) {
  return lm_raise_text(L,
                       "cannot compare tensors by < and >, which in Lua return one boolean; a:lt(b) and a:gt(b) return "
                       "a tensor of booleans, a:item() < b:item() compares tensors of one element");
}

LM_METAMETHOD(__concat) {
  return lm_raise_text(L,
                       "cannot concatenate a tensor; x:item() is the number of one element, tostring(x) the text that "
                       "print shows");
}

LM_METAMETHOD(__le) {
  return lm_raise_text(L,
                       "cannot compare tensors by <= and >=, which in Lua return one boolean; a:le(b) and a:ge(b) "
                       "return a tensor of booleans, a:item() <= b:item() compares tensors of one element");
}

LM_METAMETHOD(__len) {
  lm_tensor *t = lm_need_shaped(L, 1, "#", "x");
  if (t->ndim == 0) return lm_raise(L, lm_fail_value("#", "x", "at least 1-d", "a 0-d tensor"));
  return lm_return_number(L, (double)t->size[0]);
}

/* print_options([precision, threshold, edgeitems, linewidth, sci_mode]): sets this thread's options; returns all. */
LM_FUNCTION(print_options) {
  lm_print_options *now = lm_printing();
  int64_t *field[] = {&now->precision, &now->threshold, &now->edge, &now->line, &now->scientific};
  enum { FIELDS = sizeof field / sizeof *field };
  int given = lua_gettop(L);
  for (int i = 0; i < FIELDS; i++) {
    if (i < given) *field[i] = (int64_t)lm_need_number(L, i + 1, "set_printoptions", "number");
    lua_pushnumber(L, (lua_Number)*field[i]);
  }
  return FIELDS;
}

static int push_text(lua_State *L) { return lm_return_text(L, lua_touserdata(L, 1)); }

static lm_status attempt_print(lua_State *L, lm_lua *s, void *arg) {
  char **text = arg, suffix[96] = "";
  lm_tensor *t;
  NEED(lm_read_tensor(L, s, 1, "tostring", "x", &t));
  lm_note_read(L, s, t, "tostring");
  const char *made_by = lm_grad_fn_name(t);
  if (made_by) {
    snprintf(suffix, sizeof suffix, ", grad_fn=<%s>", made_by);
  } else if (lm_requires_grad(t)) {
    snprintf(suffix, sizeof suffix, ", requires_grad=true");
  }
  return lm_tensor_print(t, suffix[0] ? suffix : NULL, text);
}

LM_METAMETHOD(__tostring) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, 1);
  if (!b) return lm_raise_arg(L, 1, "tostring", "x", "a tensor");
  if (!b->t) {
    lua_pushfstring(L, "tensor (%s)", b->why ? b->why : "empty");
    return 1;
  }
  lua_settop(L, 1);
  lua_pushcfunction(L, push_text); /* may raise, so before the text exists, which would leak */
  char *text = NULL;
  lm_status status = lm_retry_after_gc(L, s, attempt_print, &text);
  if (status != LM_OK) lm_free(text);
  lm_need(L, status);
  lua_pushlightuserdata(L, text);
  int failed = lua_pcall(L, 1, 1, 0);
  lm_free(text);
  return failed ? lua_error(L) : 1;
}
