/* Reads one Lua value into C. No reader raises, so callers can release what they own; none allocates in Lua, so no
 * finalizer runs between reading a handle and using it. lm_to_int64 runs Lua code, and keeps alive the tensors that
 * handles release meanwhile. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "op_entries.h"
#include "tensor/generator.h"

static const double exact = 9007199254740992.0; /* 2^53: integers up to here are exact in a double */

static lm_status dead_tensor(const lm_tensor_handle *b, const char *fn, const char *arg) {
  return lm_fail_value(fn, arg, "a live tensor", lm_text("one that %s", b->why ? b->why : "is empty"));
}

lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  if (!b) return lm_fail_arg(L, s, i, fn, arg, "a tensor");
  if (!(*out = lm_tensor_of(s, b))) return lm_settling_failed(s) ? LM_E_STATE : dead_tensor(b, fn, arg);
  return LM_OK;
}

lm_status lm_read_plain(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype dtype,
                        lm_tensor **out) {
  NEED(lm_read_tensor(L, s, i, fn, arg, out));
  const lm_tensor *t = *out;
  if (t->dtype == dtype && lm_is_contiguous(t) && LM_DEVICE_KIND(t->device) == LM_CPU) return LM_OK;
  return lm_fail_value(fn, arg, lm_text("a contiguous tensor of dtype %s on the CPU", lm_dtype_name(dtype)),
                       lm_describe_arg(L, s, i));
}

lm_status lm_read_scalar(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out,
                         lm_tensor **owned) {
  *owned = NULL;
  int64_t whole;
  switch (lua_type(L, i)) {
    case LUA_TUSERDATA: return lm_read_tensor(L, s, i, fn, arg, out);
    case LUA_TNUMBER: {
      lm_status status = lm_tensor_number(lua_tonumber(L, i), owned);
      *out = *owned;
      return status;
    }
    case LUA_TBOOLEAN: {
      lm_status status = lm_tensor_number(lua_toboolean(L, i), owned);
      *out = *owned;
      return status;
    }
    default: break;
  }
  if (!lm_to_int64(L, s, i, &whole)) return lm_fail_arg(L, s, i, fn, arg, "a tensor or a number");
  lm_status status = lm_tensor_number(0, owned);
  if (status == LM_OK) memcpy((*owned)->data, &whole, sizeof whole);
  *out = *owned;
  return status;
}

lm_status lm_read_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, double *out) {
  int64_t whole;
  if (lua_type(L, i) == LUA_TNUMBER) {
    *out = lua_tonumber(L, i);
    return LM_OK;
  }
  if (lm_to_int64(L, s, i, &whole)) {
    *out = (double)whole;
    return LM_OK;
  }
  const lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  if (s->follows) NEED(lm_settle());
  if (!b || !b->t || b->t->ndim > 0) return lm_fail_arg(L, s, i, fn, arg, "a number");
  if (lm_requires_grad(b->t))
    return lm_remedy(lm_fail_value(fn, arg, "a number", "a tensor that requires grad"), "pass t:item() or t:detach()");
  lm_note_read(L, s, b->t, fn);
  return lm_tensor_item_f64(b->t, out);
}

lm_status lm_read_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out) {
  if (lua_type(L, i) == LUA_TNUMBER) {
    double v = lua_tonumber(L, i);
    bool held = v >= -exact && v <= exact;
    if (!held || v != (double)(int64_t)v)
      return lm_fail_arg(L, s, i, fn, arg, held || isnan(v) ? "an integer" : "an integer up to 2^53");
    *out = (int64_t)v;
    return LM_OK;
  }
  if (lm_to_int64(L, s, i, out)) return LM_OK;
  const lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  if (s->follows) NEED(lm_settle());
  if (b && b->t && b->t->ndim == 0 && (b->t->dtype == LM_I64 || b->t->dtype == LM_I32)) {
    lm_note_read(L, s, b->t, fn);
    return lm_tensor_item_i64(b->t, out);
  }
  return lm_fail_arg(L, s, i, fn, arg, "an integer");
}

lm_status lm_read_boolean(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out) {
  if (lua_type(L, i) != LUA_TBOOLEAN) return lm_fail_arg(L, s, i, fn, arg, "true or false");
  *out = lua_toboolean(L, i);
  return LM_OK;
}

lm_status lm_read_text(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out) {
  const char *text = lm_to_text(L, i);
  if (!text) return lm_fail_arg(L, s, i, fn, arg, "a string");
  *out = text;
  return LM_OK;
}

lm_status lm_read_string(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out,
                         size_t *n) {
  if (lua_type(L, i) != LUA_TSTRING) return lm_fail_arg(L, s, i, fn, arg, "a string");
  *out = lua_tolstring(L, i, n);
  return LM_OK;
}

lm_status lm_read_dim(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out) {
  lm_status status = lm_read_int(L, s, i, fn, arg, out);
  if (status != LM_OK)
    return lua_type(L, i) == LUA_TNUMBER ? status : lm_fail_arg(L, s, i, fn, arg, "a dim (an integer)");
  if (*out == 0)
    return lm_remedy(lm_fail_int(fn, arg, "a dim of the tensor", 0), "dims start at 1, or at -1 from the end");
  if (*out > INT16_MAX || *out < INT16_MIN) { return lm_fail_int(fn, arg, "a dim of the tensor", *out); }
  if (*out > 0) --*out;
  return LM_OK;
}

lm_status lm_read_dtype(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype *out) {
  const char *name = lm_to_text(L, i);
  if (!name) return lm_fail_arg(L, s, i, fn, arg, "a dtype such as \"float32\"");
  for (int d = 0; d < LM_DTYPE_COUNT; d++) {
    if (s->dtype_name[d] == name) {
      *out = (lm_dtype)d;
      return LM_OK;
    }
  }
  lm_status status = lm_dtype_parse(name, out);
  return status == LM_OK ? status : lm_fail_in(status, fn);
}

lm_status lm_read_device(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_device *out) {
  char name[32];
  const char *text;
  if (lua_type(L, i) == LUA_TNUMBER) {
    double v = lua_tonumber(L, i);
    if (!(v >= 0 && v < LM_DEVICE_MAX) || v != (int)v)
      return lm_fail_arg(L, s, i, fn, arg, "a device (a CUDA ordinal from 0)");
    snprintf(name, sizeof name, "cuda:%d", (int)v);
    text = name;
  } else if ((text = lm_to_text(L, i))) {
    if (text == s->device_cpu) {
      *out = LM_DEVICE(LM_CPU, 0);
      return LM_OK;
    }
  } else {
    return lm_fail_arg(L, s, i, fn, arg, "a device such as \"cpu\"");
  }
  lm_status status = lm_device_parse(text, out);
  return status == LM_OK ? status : lm_fail_in(status, fn);
}

/* Fails for a metatable that may make a table seem to have entries, which these readers would not see. */
lm_status lm_check_empty(lua_State *L, int i, const char *fn, const char *arg) {
  int top = lua_gettop(L);
  bool stands_in = lua_getmetatable(L, i) && !lm_field(L, top + 1, "__plain") &&
                   (lm_field(L, top + 1, "__index") || lm_field(L, top + 1, "__len"));
  lua_settop(L, top);
  if (!stands_in) return LM_OK;
  return lm_remedy(lm_fail_value(fn, arg, "a plain table", "an empty one with a metatable"), "copy its entries");
}

lm_status lm_check_start(lua_State *L, int i, const char *fn, const char *arg) {
  lua_rawgeti(L, i, 0);
  bool at_zero = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (!at_zero) return LM_OK;
  return lm_remedy(lm_fail_value(fn, arg, "a list that starts at 1", "one with an entry at 0"), "write {a, b, c}");
}

/* Returns whether the value at i is a table whose keys are all numbers. *stray: a key outside 1 to its length, or 0. */
static bool is_list(lua_State *L, int i, double *stray) {
  *stray = 0;
  if (lua_type(L, i) != LUA_TTABLE) return false;
  double n = (double)lua_objlen(L, i);
  lua_pushnil(L);
  while (lua_next(L, i)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TNUMBER) {
      lua_pop(L, 1);
      return false;
    }
    double key = lua_tonumber(L, -1);
    if (!(key >= 1 && key <= n && key == floor(key))) *stray = key;
  }
  return true;
}

static lm_status check_dense(lua_State *L, int i, const char *fn, const char *arg, double stray) {
  NEED(lm_check_start(L, i, fn, arg));
  if (stray == 0) return LM_OK;
  return lm_fail_value(fn, arg, "a list without gaps",
                       lm_text("a list of %zu with an entry at %.14g", lua_objlen(L, i), stray));
}

/* Reads a number or a list of at most `limit` numbers into v, and their number into *count. */
static lm_status read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, int limit,
                           int *count, int64_t *v) {
  lm_status (*read)(lua_State *, const lm_lua *, int, const char *, const char *, int64_t *) =
      dims ? lm_read_dim : lm_read_int;
  if (lua_type(L, i) != LUA_TTABLE) {
    *count = 1;
    lm_status status = read(L, s, i, fn, arg, &v[0]);
    if (status == LM_OK || lua_type(L, i) == LUA_TNUMBER) return status;
    return lm_fail_arg(L, s, i, fn, arg, dims ? "a dim or a list of dims" : "an integer or a list of integers");
  }
  size_t n = lua_objlen(L, i);
  if (n > (size_t)limit) {
    return lm_fail_value(fn, arg, lm_text("a list of at most %d entries", limit), lm_text("%zu", n));
  }
  double stray;
  if (!is_list(L, i, &stray)) {
    const char *got = lm_describe_arg(L, s, i);
    bool plain = strcmp(got, "a table") == 0;
    return lm_fail_value(fn, arg, "a list", plain ? "a table with named fields; options come last" : got);
  }
  NEED(check_dense(L, i, fn, arg, stray));
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    lm_status status = read(L, s, lua_gettop(L), fn, arg, &v[k]);
    lua_pop(L, 1);
    if (status != LM_OK) return status;
  }
  *count = (int)n;
  return n > 0 ? LM_OK : lm_check_empty(L, i, fn, arg);
}

lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out) {
  return read_ints(L, s, i, fn, arg, dims, LM_MAX_DIMS, &out->n, out->v);
}

lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out) {
  lm_status status = LM_OK;
  if (lm_to_tensor_handle(L, s, i)) {
    return lm_fail_value(fn, arg, "a list of tensors", "one tensor; put it in a table");
  }
  double stray;
  if (!is_list(L, i, &stray)) return lm_fail_arg(L, s, i, fn, arg, "a list of tensors");
  NEED(check_dense(L, i, fn, arg, stray));
  size_t count = lua_objlen(L, i);
  if (count == 0 && (status = lm_check_empty(L, i, fn, arg)) != LM_OK) return status;
  if (count > 1 << 20) return lm_fail_value(fn, arg, lm_text("at most %d tensors", 1 << 20), lm_text("%zu", count));
  lm_tensor **list = lm_malloc(count * sizeof *list);
  if (!list) return LM_E_OOM;
  for (size_t k = 0; k < count && status == LM_OK; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    list[k] = NULL;
    bool hole = holes && !lua_toboolean(L, -1);
    if (!hole) {
      lm_tensor_handle *b = lm_to_tensor_handle(L, s, lua_gettop(L));
      if (b && (list[k] = lm_tensor_of(s, b))) {
      } else if (b && lm_settling_failed(s)) {
        status = LM_E_STATE;
      } else if (b) {
        status = dead_tensor(b, fn, lm_text("%s[%zu]", arg, k + 1));
      } else {
        status = lm_fail_value(fn, lm_text("%s[%zu]", arg, k + 1), "a tensor", lm_describe_arg(L, s, lua_gettop(L)));
        if (lua_type(L, -1) == LUA_TNUMBER) {
          lm_remedy(status, "lm.tensor {…} makes one of numbers; an element is one as x[{{i, i}}]");
        }
      }
    }
    lua_pop(L, 1);
  }
  if (status != LM_OK) {
    lm_free(list);
    return status;
  }
  *n = (int)count;
  *out = list;
  return LM_OK;
}

lm_status lm_read_tensor_or_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes,
                                 lm_list *out) {
  if (lm_to_tensor_handle(L, s, i)) {
    lm_tensor *one;
    NEED(lm_read_tensor(L, s, i, fn, arg, &one));
    if (!(out->v = lm_malloc(sizeof *out->v))) return LM_E_OOM;
    out->n = 1;
    out->v[0] = one;
  } else {
    NEED(lm_read_list(L, s, i, fn, arg, holes, &out->n, &out->v));
  }
  for (int k = 0; k < out->n; k++) lm_retain(out->v[k]);
  return LM_OK;
}

static void close_generator(void *object) { (void)object; }
const lm_object_type lm_generator_type = {
    "luminary.generator", sizeof(lm_generator), close_generator, "a generator", NULL, NULL};

lm_status lm_read_generator(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg,
                            struct lm_generator **out) {
  *out = lm_to_object(L, i, &lm_generator_type);
  if (*out) return LM_OK;
  return lm_fail_arg(L, s, i, fn, arg, "an lm.Generator");
}

/* ---- declared arguments */

const lm_arg_word lm_arg_words[] = {
    [LM_ARG_T] = {"tensor", "a tensor"},
    [LM_ARG_T_OPT] = {"tensor", NULL},
    [LM_ARG_S] = {"tensor or number", "a tensor or a number"},
    [LM_ARG_S_OPT] = {"tensor or number", NULL},
    [LM_ARG_TL] = {"list of tensors", "a list of tensors"},
    [LM_ARG_TL_HOLES] = {"list of tensors, or nil in some positions", "a list of tensors"},
    [LM_ARG_F] = {"number", NULL},
    [LM_ARG_F_REQ] = {"number", "a number"},
    [LM_ARG_F_OPT] = {"number", NULL},
    [LM_ARG_I] = {"integer", NULL},
    [LM_ARG_I_REQ] = {"integer", "an integer"},
    [LM_ARG_I_OPT] = {"integer", NULL},
    [LM_ARG_B] = {"boolean", NULL},
    [LM_ARG_I2] = {"integer or pair", NULL},
    [LM_ARG_PAD2] = {"integer or pair", NULL},
    [LM_ARG_DIM] = {"dim", "a dim (an integer)"},
    [LM_ARG_DIM_OPT] = {"dim", NULL},
    [LM_ARG_DIMS_OPT] = {"dim or list of dims", NULL},
    [LM_ARG_SIZE] = {"integers, or one list of them", "sizes (integers, or a list of them)"},
    [LM_ARG_SIZE_OPT] = {"integers, or one list of them", NULL},
    [LM_ARG_PADS] = {"list of integers", "a list of integers"},
    [LM_ARG_DTYPE] = {"dtype", NULL},
    [LM_ARG_DEVICE] = {"device", NULL},
    [LM_ARG_GENERATOR] = {"lm.Generator", NULL},
    [LM_ARG_E] = {"string", NULL},
};

static lm_status read_pair(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out) {
  lm_ints v;
  NEED(lm_read_ints(L, s, i, fn, arg, false, &v));
  if (v.n == 0) return LM_OK; /* an empty list counts as left out */
  if (v.n > 2 && lua_type(L, i) == LUA_TTABLE) {
    return lm_fail_value(fn, arg, "an integer or a pair", lm_text("a list of %d", v.n));
  }
  out[0] = v.v[0];
  out[1] = v.v[v.n - 1];
  return LM_OK;
}

static lm_status read_name(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, int *out) {
  int n = 0;
  const char *given = lm_to_text(L, i);
  if (given) {
    for (; a->names[n]; n++) {
      if (strcmp(a->names[n], given) == 0) {
        *out = n;
        return LM_OK;
      }
    }
  }
  char choices[160] = "";
  size_t used = 0;
  for (n = 0; a->names[n] && used < sizeof choices; n++) {
    used += (size_t)snprintf(choices + used, sizeof choices - used, "%s'%s'", n ? ", " : "", a->names[n]);
  }
  lm_status status = lm_fail_arg(L, s, i, fn, a->name, lm_text("one of %s", choices));
  const char *near = given ? lm_nearest(given, n, a->names) : NULL;
  return near ? lm_remedy(status, "did you mean '%s'?", near) : status;
}

/* Reads padding: a number, a pair, "valid" or "same". */
static lm_status read_padding(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, int64_t *out) {
  if (lua_type(L, i) != LUA_TSTRING) return read_pair(L, s, i, fn, a->name, out);
  int choice;
  lm_status status = read_name(L, s, i, fn, a, &choice);
  if (status == LM_OK) out[0] = out[1] = choice ? LM_PAD_SAME : 0;
  return status;
}

/* Reads a number and rejects NaN, which stands for an argument that was not given. */
static lm_status read_optional_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg,
                                      double *out) {
  lm_status status = lm_read_number(L, s, i, fn, arg, out);
  if (status != LM_OK || !isnan(*out)) return status;
  return lm_fail_number(fn, arg, "a number, or nil for the default", *out);
}

lm_status lm_read_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, void *out) {
  lm_list *list = out;
  lm_pads *pads = out;
  switch (a->kind) {
    case LM_ARG_T:
    case LM_ARG_T_OPT: return lm_read_tensor(L, s, i, fn, a->name, out);
    case LM_ARG_TL: return lm_read_list(L, s, i, fn, a->name, false, &list->n, &list->v);
    case LM_ARG_TL_HOLES: return lm_read_list(L, s, i, fn, a->name, true, &list->n, &list->v);
    case LM_ARG_F:
    case LM_ARG_F_REQ: return lm_read_number(L, s, i, fn, a->name, out);
    case LM_ARG_F_OPT: return read_optional_number(L, s, i, fn, a->name, out);
    case LM_ARG_I:
    case LM_ARG_I_REQ:
    case LM_ARG_I_OPT: return lm_read_int(L, s, i, fn, a->name, out);
    case LM_ARG_B: return lm_read_boolean(L, s, i, fn, a->name, out);
    case LM_ARG_I2: return read_pair(L, s, i, fn, a->name, out);
    case LM_ARG_PAD2: return read_padding(L, s, i, fn, a, out);
    case LM_ARG_DIM:
    case LM_ARG_DIM_OPT: return lm_read_dim(L, s, i, fn, a->name, out);
    case LM_ARG_DIMS_OPT: return lm_read_ints(L, s, i, fn, a->name, true, out);
    case LM_ARG_SIZE:
    case LM_ARG_SIZE_OPT: return lm_read_ints(L, s, i, fn, a->name, false, out);
    case LM_ARG_PADS: return read_ints(L, s, i, fn, a->name, false, 2 * LM_MAX_DIMS, &pads->n, pads->v);
    case LM_ARG_DTYPE: return lm_read_dtype(L, s, i, fn, a->name, out);
    case LM_ARG_DEVICE: return lm_read_device(L, s, i, fn, a->name, out);
    case LM_ARG_GENERATOR: return lm_read_generator(L, s, i, fn, a->name, out);
    case LM_ARG_E: return read_name(L, s, i, fn, a, out);
    case LM_ARG_FORMAT: {
      const lm_arg format = {.name = a->name, .names = lm_names_memory_format};
      return read_name(L, s, i, fn, &format, out);
    }
    case LM_ARG_TEXT: return lm_read_text(L, s, i, fn, a->name, out);
    case LM_ARG_BYTES: return lm_read_plain(L, s, i, fn, a->name, LM_U8, out);
    case LM_ARG_INT64S: return lm_read_plain(L, s, i, fn, a->name, LM_I64, out);
    case LM_ARG_SOME: return lm_read_tensor_or_list(L, s, i, fn, a->name, true, out);
    case LM_ARG_S: /* lm_read_scalar may make a tensor, which only the caller can release */
    case LM_ARG_S_OPT:
    case LM_ARG_OTHER: return LM_OK;
  }
  return lm_fail_missing(fn, a->name);
}

static lm_status read_param(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_param *p) {
  const lm_arg a = {.kind = (lm_arg_kind)(p->kind & ~LM_OR_NIL), .name = p->name};
  return lm_read_arg(L, s, i, fn, &a, p->out);
}

lm_status lm_read_args(lua_State *L, const lm_lua *s, int first, const char *fn, int n, const lm_param *params) {
  for (int k = 0; k < n; k++) {
    if ((params[k].kind & LM_OR_NIL) && lua_isnoneornil(L, first + k)) continue;
    NEED(read_param(L, s, first + k, fn, &params[k]));
  }
  return LM_OK;
}

lm_status lm_fail_key(lua_State *L, int i, const char *fn, int n, const char *const *names) {
  const char *key = lm_to_text(L, i);
  if (lua_type(L, i) != LUA_TSTRING)
    return lm_fail_value(fn, "an option's name", "a string", lm_text("a %s", luaL_typename(L, i)));
  if (!key) return lm_fail_value(fn, "an option's name", "text without a NUL byte", "one with a NUL byte");
  return lm_fail_option(fn, key, n, names);
}

/* Reads the options in the table at i. Bit k of *given: params[k] already has a value. */
static lm_status read_named(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_param *params,
                            uint32_t *given) {
  lm_status status = LM_OK;
  bool empty = true;
  int top = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
    const char *key = lm_to_text(L, top + 1), *names[LM_MAX_ARGS];
    int k = 0;
    empty = false;
    while (k < n && !(key && strcmp(params[k].name, key) == 0)) k++;
    if (k == n) {
      for (k = 0; k < n; k++) names[k] = params[k].name;
      TRY(lm_fail_key(L, top + 1, fn, n, names));
    }
    if (*given & 1u << k) TRY(lm_fail_twice(fn, key));
    *given |= 1u << k;
    TRY(read_param(L, s, top + 2, fn, &params[k]));
  }
  if (empty) status = lm_check_empty(L, i, fn, "options");
done:
  lua_settop(L, top);
  return status;
}

lm_status lm_read_options(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_param *params) {
  uint32_t given = 0;
  if (lua_isnoneornil(L, i)) return LM_OK;
  if (lua_type(L, i) != LUA_TTABLE)
    return lm_fail_value(fn, "options", lm_text("one table at the end ({%s = …})", params[0].name),
                         lm_text("a %s", luaL_typename(L, i)));
  return read_named(L, s, i, fn, n, params, &given);
}

lm_status lm_read_call(lua_State *L, const lm_lua *s, int first, int count, const char *fn, int limit, int n,
                       const lm_param *params, uint32_t *given) {
  int last = first + count - 1;
  bool named = count > 0 && lua_type(L, last) == LUA_TTABLE && lua_objlen(L, last) == 0;
  if (named) count--;
  *given = 0;
  if (count > limit) return lm_fail_too_many(fn, limit, "option", count);
  for (int k = 0; k < count; k++) {
    if (lua_isnil(L, first + k)) continue;
    *given |= 1u << k;
    NEED(read_param(L, s, first + k, fn, &params[k]));
  }
  return named ? read_named(L, s, last, fn, n, params, given) : LM_OK;
}

/* ---- readers that raise */

#define NEED_ARGUMENT(kind, type)                                             \
  type lm_need_##kind(lua_State *L, int i, const char *fn, const char *arg) { \
    type value = 0;                                                           \
    lm_need(L, lm_read_##kind(L, LM_STATE(L), i, fn, arg, &value));           \
    return value;                                                             \
  }
NEED_ARGUMENT(number, double)
NEED_ARGUMENT(int, int64_t)
NEED_ARGUMENT(text, const char *)
NEED_ARGUMENT(boolean, bool)
NEED_ARGUMENT(dtype, lm_dtype)
NEED_ARGUMENT(device, lm_device)

lm_lua_string lm_need_string(lua_State *L, int i, const char *fn, const char *arg) {
  lm_lua_string s = {0};
  lm_need(L, lm_read_string(L, LM_STATE(L), i, fn, arg, &s.text, &s.n));
  return s;
}

int lm_need_table(lua_State *L, int i, const char *fn, const char *arg) {
  return lua_type(L, i) == LUA_TTABLE ? i : lm_raise_arg(L, i, fn, arg, "a table");
}

void lm_need_function(lua_State *L, int i, const char *fn, const char *before) {
  if (lua_type(L, i) == LUA_TFUNCTION) return;
  const char *last = strrchr(fn, '.');
  lm_status status = lm_fail_arg(L, LM_STATE(L), i, last ? last + 1 : fn, "f", "a function");
  lm_raise(L, lm_remedy(status, "write lm.%s(%sfunction() … end)", fn, before));
}

const char **lm_need_strings(lua_State *L, int i, const char *fn, const char *name, int before, int *n) {
  if (lua_type(L, i) != LUA_TTABLE) lm_raise_arg(L, i, fn, name, "a list of strings");
  lm_need(L, lm_check_start(L, i, fn, name));
  *n = (int)lua_objlen(L, i);
  const char **out = lua_newuserdata(L, (size_t)(before + *n + 1) * sizeof *out);
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, i, k + 1);
    if (!(out[before + k] = lm_to_text(L, -1)))
      lm_raise_arg(L, lua_gettop(L), fn, lm_text("%s[%d]", name, k + 1), "a string without a NUL byte");
    lua_pop(L, 1);
  }
  out[before + *n] = NULL;
  return out;
}

double *lm_need_numbers(lua_State *L, int i, const char *fn, const char *name, int *n) {
  lm_need_table(L, i, fn, name);
  *n = (int)lua_objlen(L, i);
  double *out = lua_newuserdata(L, ((size_t)*n + 1) * sizeof *out);
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, i, k + 1);
    out[k] = lm_need_number(L, lua_gettop(L), fn, name);
    lua_pop(L, 1);
  }
  return out;
}

/* Raises if a list that is read in Lua has an entry at 0 */
LM_FUNCTION(check_start, (text, fn), (text, arg), (any, list)) {
  return lm_return(L, lm_check_start(L, lm_need_table(L, list, fn, arg), fn, arg), 0);
}

/* Returns v as error messages show it. */
LM_FUNCTION(describe, (any, v)) { return lm_return_text(L, lm_describe_arg(L, LM_STATE(L), v)); }

/* Returns the string of the list nearest to word, or nil if none is close. */
LM_FUNCTION(nearest, (string, word), (table, list)) {
  int n = 0;
  const size_t most = lua_objlen(L, 2);
  const char **names = lua_newuserdata(L, (most + 1) * sizeof *names);
  while ((size_t)n < most) { /* the list keeps the strings alive */
    lua_rawgeti(L, 2, n + 1);
    if (lua_type(L, -1) != LUA_TSTRING) break;
    names[n++] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return lm_return_text(L, lm_nearest(word.text, n, names));
}
