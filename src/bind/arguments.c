/* Readers of one Lua value. None of them raises, so callers can release what they own; none of them
 * allocates in Lua, so no finalizer runs between reading a handle and using it. The one that runs Lua code
 * sees to it that nothing goes meanwhile. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

static const double exact = 9007199254740992.0; /* 2^53: integers up to here are exact in a double */

const char *lm_dot_hint(lua_State *L, const char *fn, const char *arg, int type) {
  static _Thread_local char text[96];
  lua_Debug ar;
  const bool method = lua_getstack(L, 0, &ar) && lua_getinfo(L, "n", &ar) && strcmp(ar.namewhat, "method") == 0;
  const bool first = strcmp(arg, "x") == 0, second = strcmp(arg, "other") == 0 || strcmp(arg, "exponent") == 0;
  const bool dotted = !method && ((type == LUA_TNONE && (first || second)) ||
                                  (first && (type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION)) ||
                                  (first && type == LUA_TBOOLEAN && fn[strlen(fn) - 1] == '_'));
  snprintf(text, sizeof text, " (as a method it is x:%s(…), with a colon)", fn);
  return dotted ? text : "";
}

const char *lm_equality_hint(int type) {
  if (type != LUA_TBOOLEAN) return "";
  return "; == of tensors is whether both are the same object: x:eq(y) compares their elements";
}

lm_status lm_fail_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char *bound) {
  int type = lua_type(L, i);
  const char *hint = lm_dot_hint(L, fn, arg, type);
  if (!*hint && strstr(bound, "tensor")) hint = lm_equality_hint(type);
  return lm_fail(lm_fail_value(fn, arg, bound, lm_describe_arg(L, s, i)), "%s%s", lm_error(), hint);
}

int lm_raise_arg(lua_State *L, int i, const char *fn, const char *arg, const char *bound) {
  return lm_raise(L, lm_fail_arg(L, LM_STATE(L), i, fn, arg, bound));
}

static lm_status dead_tensor(const lm_tensor_handle *b, const char *fn, const char *arg) {
  return lm_fail_value(fn, arg, "a live tensor", lm_text("one that %s", b->why ? b->why : "is empty"));
}

lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  if (!b) return lm_fail_arg(L, s, i, fn, arg, "a tensor");
  if (!b->t) return dead_tensor(b, fn, arg);
  *out = b->t;
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

bool lm_to_int64(lua_State *L, const lm_lua *s, int i, int64_t *out) {
  enum { TCDATA = 10 }; /* LuaJIT's type of FFI values; no public name */
  if (lua_type(L, i) != TCDATA) return false;
  if (i < 0) i = lua_gettop(L) + 1 + i;
  lm_reg_get(L, &lm_reg_is_int64);
  if (lua_type(L, -1) != LUA_TFUNCTION) {
    lua_pop(L, 1);
    return false;
  }
  lua_pushvalue(L, i);
  lm_lua *state = (lm_lua *)s;
  state->asking++; /* a debug hook may run, and free what the call has read */
  bool is = lua_pcall(L, 1, 1, 0) == 0 && lua_toboolean(L, -1);
  state->asking--;
  lua_pop(L, 1);
  if (is) memcpy(out, lua_topointer(L, i), sizeof *out);
  return is;
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
  if (!b || !b->t || b->t->ndim > 0) return lm_fail_arg(L, s, i, fn, arg, "a number");
  if (lm_requires_grad(b->t))
    return lm_remedy(lm_fail_value(fn, arg, "a number", "a tensor that requires grad"), "pass t:item() or t:detach()");
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
  if (b && b->t && b->t->ndim == 0 && (b->t->dtype == LM_I64 || b->t->dtype == LM_I32)) {
    return lm_tensor_item_i64(b->t, out);
  }
  return lm_fail_arg(L, s, i, fn, arg, "an integer");
}

lm_status lm_read_bool(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out) {
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

/* By metatable it may seem to have entries, and nothing here would see them. */
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

static bool is_list(lua_State *L, int i) { /* a table whose keys are numbers */
  if (lua_type(L, i) != LUA_TTABLE) return false;
  lua_pushnil(L);
  while (lua_next(L, i)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TNUMBER) {
      lua_pop(L, 1);
      return false;
    }
  }
  return true;
}

lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out) {
  lm_status (*read)(lua_State *, const lm_lua *, int, const char *, const char *, int64_t *) =
      dims ? lm_read_dim : lm_read_int;
  if (lua_type(L, i) != LUA_TTABLE) {
    out->n = 1;
    lm_status status = read(L, s, i, fn, arg, &out->v[0]);
    if (status == LM_OK || lua_type(L, i) == LUA_TNUMBER) return status;
    return lm_fail_arg(L, s, i, fn, arg, dims ? "a dim or a list of dims" : "an integer or a list of integers");
  }
  size_t n = lua_objlen(L, i);
  if (n > LM_MAX_DIMS) {
    return lm_fail_value(fn, arg, lm_text("a list of at most %d entries", LM_MAX_DIMS), lm_text("%zu", n));
  }
  if (!is_list(L, i)) {
    const char *got = lm_describe_arg(L, s, i);
    bool plain = strcmp(got, "a table") == 0;
    return lm_fail_value(fn, arg, "a list", plain ? "a table with named fields; options come last" : got);
  }
  lm_status status = lm_check_start(L, i, fn, arg);
  if (status != LM_OK) return status;
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    status = read(L, s, lua_gettop(L), fn, arg, &out->v[k]);
    lua_pop(L, 1);
    if (status != LM_OK) return status;
  }
  out->n = (int)n;
  return n > 0 ? LM_OK : lm_check_empty(L, i, fn, arg);
}

lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out) {
  lm_status status = LM_OK;
  if (lm_to_tensor_handle(L, s, i)) {
    return lm_fail_value(fn, arg, "a list of tensors", "one tensor; put it in a table");
  }
  if (!is_list(L, i)) return lm_fail_arg(L, s, i, fn, arg, "a list of tensors");
  if ((status = lm_check_start(L, i, fn, arg)) != LM_OK) return status;
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
      if (b && b->t) {
        list[k] = b->t;
      } else if (b) {
        status = dead_tensor(b, fn, lm_text("%s[%zu]", arg, k + 1));
      } else {
        status = lm_fail_value(fn, lm_text("%s[%zu]", arg, k + 1), "a tensor", lm_describe_arg(L, s, lua_gettop(L)));
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

/* By walking: looking a C string up would make a Lua string, which may collect. */
bool lm_field(lua_State *L, int i, const char *name) {
  lua_pushnil(L);
  while (lua_next(L, i)) {
    const char *key = lm_to_text(L, -2);
    if (key && strcmp(key, name) == 0) {
      lua_remove(L, -2);
      return true;
    }
    lua_pop(L, 1);
  }
  return false;
}

static lm_status read_format(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_format *out) {
  const char *name = lm_to_text(L, i);
  for (int n = 0; name && lm_names_memory_format[n]; n++) {
    if (strcmp(lm_names_memory_format[n], name) != 0) continue;
    *out = (lm_format)n;
    return LM_OK;
  }
  return lm_fail_arg(L, s, i, fn, arg, "\"preserve\", \"contiguous\" or \"channels_last\"");
}

static lm_status read_option(lua_State *L, const lm_lua *s, const char *fn, const lm_option *o) {
  int value = lua_gettop(L);
  switch (o->kind) {
    case LM_OPTION_BOOL: return lm_read_bool(L, s, value, fn, o->name, o->out);
    case LM_OPTION_NUMBER: return lm_read_number(L, s, value, fn, o->name, o->out);
    case LM_OPTION_INT: return lm_read_int(L, s, value, fn, o->name, o->out);
    case LM_OPTION_TEXT: return lm_read_text(L, s, value, fn, o->name, o->out);
    case LM_OPTION_DTYPE: return lm_read_dtype(L, s, value, fn, o->name, o->out);
    case LM_OPTION_DEVICE: return lm_read_device(L, s, value, fn, o->name, o->out);
    case LM_OPTION_FORMAT: return read_format(L, s, value, fn, o->name, o->out);
    case LM_OPTION_OTHER: break;
  }
  return LM_OK;
}

/* The key is at the top but one. */
static lm_status unknown_option(lua_State *L, const char *fn, int n, const lm_option *options) {
  enum { MAX_NAMES = 16 };
  const char *names[MAX_NAMES], *key = lm_to_text(L, -2);
  if (lua_type(L, -2) != LUA_TSTRING)
    return lm_fail_value(fn, "an option's name", "a string", lm_text("a %s", luaL_typename(L, -2)));
  if (!key) return lm_fail_value(fn, "an option's name", "text without a NUL byte", "one with a NUL byte");
  for (int k = 0; k < n && k < MAX_NAMES; k++) names[k] = options[k].name;
  return lm_fail_option(fn, key, n < MAX_NAMES ? n : MAX_NAMES, names);
}

lm_status lm_read_options(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_option *options) {
  lm_status status = LM_OK;
  if (i == 0 || lua_isnoneornil(L, i)) return LM_OK;
  if (lua_type(L, i) != LUA_TTABLE)
    return lm_fail_value(fn, "options", lm_text("one table at the end ({%s = …})", options[0].name),
                         lm_text("a %s", luaL_typename(L, i)));
  bool empty = true;
  int top = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
    const char *key = lm_to_text(L, -2);
    int k = 0;
    empty = false;
    while (k < n && !(key && strcmp(options[k].name, key) == 0)) k++;
    TRY(k < n ? read_option(L, s, fn, &options[k]) : unknown_option(L, fn, n, options));
  }
  if (empty) status = lm_check_empty(L, i, fn, "options");
done:
  lua_settop(L, top);
  return status;
}

lm_status lm_fold_options(lua_State *L, const char *fn, int first, int n, const char *const *names) {
  int last = first + n - 1, limit = 0, table;
  bool named = n > 0 && lua_type(L, last) == LUA_TTABLE && lua_objlen(L, last) == 0;
  while (names[limit]) limit++;
  if (n - named > limit) return lm_fail_too_many(fn, limit, "option", n - named);
  lua_newtable(L);
  table = lua_gettop(L);
  if (named) {
    for (lua_pushnil(L); lua_next(L, last);) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, table);
    }
  }
  for (int k = 0; k < n - named; k++) {
    if (lua_isnil(L, first + k)) continue;
    if (lm_field(L, table, names[k])) { NEED(lm_fail_twice(fn, names[k])); }
    lua_pushstring(L, names[k]);
    lua_pushvalue(L, first + k);
    lua_rawset(L, table);
  }
  lua_insert(L, first);
  for (int k = 0; k < n; k++) lua_remove(L, first + 1);
  return LM_OK;
}

/* ---- raising */

#define NEED_ARGUMENT(kind, type)                                             \
  type lm_need_##kind(lua_State *L, int i, const char *fn, const char *arg) { \
    type value = 0;                                                           \
    lm_need(L, lm_read_##kind(L, LM_STATE(L), i, fn, arg, &value));           \
    return value;                                                             \
  }
NEED_ARGUMENT(number, double)
NEED_ARGUMENT(int, int64_t)
NEED_ARGUMENT(text, const char *)
NEED_ARGUMENT(bool, bool)
NEED_ARGUMENT(dtype, lm_dtype)

lm_device lm_need_device(lua_State *L, int i, const char *fn) {
  lm_device device = LM_NO_DEVICE;
  lm_need(L, lm_read_device(L, LM_STATE(L), i, fn, "device", &device));
  return device;
}

void lm_need_function(lua_State *L, int i, const char *fn, const char *before) {
  if (lua_type(L, i) == LUA_TFUNCTION) return;
  const char *last = strrchr(fn, '.');
  lm_status status = lm_fail_arg(L, LM_STATE(L), i, last ? last + 1 : fn, "f", "a function");
  lm_raise(L, lm_remedy(status, "write lm.%s(%sfunction() … end)", fn, before));
}

/* check_start(fn, arg, list): of a list that is read in Lua. */
static int bind_check_start(lua_State *L) {
  luaL_checktype(L, 3, LUA_TTABLE);
  lm_need(L, lm_check_start(L, 3, luaL_checkstring(L, 1), luaL_checkstring(L, 2)));
  return 0;
}

const luaL_Reg lm_argument_functions[] = {{"check_start", bind_check_start}, {NULL, NULL}};

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
