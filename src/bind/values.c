/* Converts Lua values to C and describes them in messages. No function here raises or allocates in Lua. */
#include <stdio.h>

#include "base/message.h"
#include "bind/bind.h"

const char *lm_to_text(lua_State *L, int i) {
  size_t n;
  if (lua_type(L, i) != LUA_TSTRING) return NULL;
  const char *text = lua_tolstring(L, i, &n);
  return strlen(text) == n ? text : NULL;
}

/* Walks the table's keys: looking up a C string would make a Lua string, which may collect. */
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
  state->reader_depth++; /* a debug hook may run, and free what the call has read */
  bool is = lua_pcall(L, 1, 1, 0) == 0 && lua_toboolean(L, -1);
  state->reader_depth--;
  lua_pop(L, 1);
  if (is) memcpy(out, lua_topointer(L, i), sizeof *out);
  return is;
}

/* Describes a string by its first 60 bytes, with NUL bytes as they are written in Lua. */
static const char *describe_string(lua_State *L, int i, char *out, size_t capacity) {
  enum { SOME = 64 };
  char start[2 * SOME + 1];
  size_t n;
  const char *text = lua_tolstring(L, i, &n);
  lm_write_bytes(start, sizeof start, text, n < SOME ? n : SOME);
  snprintf(out, capacity, "string '%s'%s", lm_ellipsize(start, 60),
           memchr(text, 0, n) ? ", which contains a NUL byte" : "");
  return out;
}

/* Returns the name of the class that the value at i is, or is an object of (*object, base/class.lua); NULL for other
 * values. The class keeps the text alive. */
static const char *class_name(lua_State *L, int i, bool *object) {
  int top = lua_gettop(L);
  const char *name = NULL;
  if (i < 0) i = top + 1 + i;
  if (!lua_checkstack(L, 4) || !lua_getmetatable(L, i)) return NULL;
  *object = lm_field(L, top + 1, "class") && lua_type(L, -1) == LUA_TTABLE;
  int of = *object ? top + 2 : i;
  if (*object || (lua_type(L, i) == LUA_TTABLE && lm_field(L, top + 1, "instance"))) {
    if (lm_field(L, of, "__name")) name = lm_to_text(L, -1);
  }
  lua_settop(L, top);
  return name;
}

/* Describes a table. A list with a named field is taken for options put into the wrong braces. */
static const char *describe_table(lua_State *L, int i, char *out, size_t capacity) {
  int top = lua_gettop(L);
  if (i < 0) i = top + 1 + i;
  if (lua_objlen(L, i) == 0 || !lua_checkstack(L, 3)) return "a table";
  const char *key = NULL;
  for (lua_pushnil(L); !key && lua_next(L, i); lua_pop(L, 1)) key = lm_to_text(L, -2);
  lua_settop(L, top);
  if (!key) return "a table";
  snprintf(out, capacity, "a list with a field '%s'; options come last, in a separate table", lm_ellipsize(key, 60));
  return out;
}

bool lm_is_module(lua_State *L, int i) {
  int top = lua_gettop(L);
  bool is = lua_checkstack(L, 3) && lua_getmetatable(L, i) && lm_field(L, top + 1, "is_module");
  lua_settop(L, top);
  return is;
}

/* Returns the text (__no_tensor) with which the class of the object at i says where its tensors are, or "". */
static const char *where_tensors_are(lua_State *L, int i) {
  int top = lua_gettop(L);
  const char *words = NULL;
  if (lua_checkstack(L, 3) && lua_getmetatable(L, i) && lm_field(L, top + 1, "class") &&
      lua_type(L, -1) == LUA_TTABLE && lm_field(L, top + 2, "__no_tensor")) {
    words = lm_to_text(L, -1);
  }
  lua_settop(L, top);
  return words ? words : "";
}

const char *lm_describe_arg(lua_State *L, const lm_lua *s, int i) {
  static _Thread_local char text[300];
  bool object;
  const char *name = class_name(L, i, &object);
  lm_tensor_handle *b;
  int64_t whole;
  if (name) {
    const char *where = object ? where_tensors_are(L, i) : "";
    name = lm_ellipsize(name, 60);
    if (!object) {
      snprintf(text, sizeof text, "the class %s itself (%s(…) makes an object of it)", name, name);
    } else {
      const char *article = lm_is_module(L, i) ? "a module, " : strchr("AEIOU", *name) ? "an " : "a ";
      snprintf(text, sizeof text, "%s%s%s%s", article, name, *where ? "; " : "", where);
    }
    return text;
  }
  switch (lua_type(L, i)) {
    case LUA_TNONE: return "nothing";
    case LUA_TBOOLEAN: return lua_toboolean(L, i) ? "true" : "false";
    case LUA_TNUMBER:
      if (lua_tonumber(L, i) != lua_tonumber(L, i)) return "nan"; /* printf may write -nan */
      lm_write(text, sizeof text, "%.14g", lua_tonumber(L, i));
      return text;
    case LUA_TSTRING: return describe_string(L, i, text, sizeof text);
    case LUA_TUSERDATA:
      b = lm_to_tensor_handle(L, s, i);
      if (!b) return "a userdata";
      if (!b->t) return "a freed tensor";
      snprintf(text, sizeof text, "a tensor %s", lm_shape_of(b->t));
      return text;
    case LUA_TTABLE:
      if (!luaL_getmetafield(L, i, "__library")) return describe_table(L, i, text, sizeof text); /* options.strict's */
      snprintf(text, sizeof text, "the library %s itself (its functions are called with a dot, not a colon)",
               lua_tostring(L, -1));
      lua_pop(L, 1);
      return text;
    default:
      if (lm_to_int64(L, s, i, &whole)) {
        snprintf(text, sizeof text, "%lld", (long long)whole);
        return text;
      }
      if (lua_type(L, i) == LUA_TNIL) return "nil";
      snprintf(text, sizeof text, "a %s", lua_typename(L, lua_type(L, i)));
      return text;
  }
}

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
  if (lm_settling_failed(s)) return LM_E_STATE;
  int type = lua_type(L, i);
  const char *hint = lm_dot_hint(L, fn, arg, type);
  if (!*hint && strstr(bound, "tensor")) hint = lm_equality_hint(type);
  lm_status status =
      type == LUA_TNONE ? lm_fail_absent(fn, arg, bound) : lm_fail_value(fn, arg, bound, lm_describe_arg(L, s, i));
  return lm_fail(status, "%s%s", lm_error(), hint);
}
