/* From a status to a Lua error, and the words in it. */
#include <stdarg.h>
#include <stdio.h>

#include "bind/bind.h"
#include "distributed/group/world.h"
#include "op/op.h"

static bool is_own(const lua_Debug *ar, const char *prefix, size_t n) {
  return n > 0 && strncmp(ar->source, prefix, n) == 0;
}

/* The first level outside our own Lua files. Looks at so many, since each look walks the stack from its top. */
static bool find_caller(lua_State *L, lua_Debug *ar) {
  enum { LEVELS = 200 };
  lm_reg_get(L, &lm_reg_own_files);
  size_t n = 0;
  const char *prefix = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : "";
  bool found = false;
  for (int level = 1; !found && level <= LEVELS && lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    found = ar->currentline > 0 && !is_own(ar, prefix, n);
  }
  lua_pop(L, 1);
  return found;
}

void lm_push_where(lua_State *L) {
  lua_Debug ar;
  if (find_caller(L, &ar)) {
    lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
  } else {
    lua_pushliteral(L, "");
  }
}

void lm_note_line(lua_State *L, const lm_lua *s) {
  if (s->worlds == 0) return;
  lua_Debug ar;
  char line[LUA_IDSIZE + 16] = "";
  if (find_caller(L, &ar)) snprintf(line, sizeof line, "%s:%d", ar.short_src, ar.currentline);
  lm_set_where(line);
}

void lm_note_anomaly(lua_State *L) {
  lua_Debug ar;
  char line[LUA_IDSIZE + 16] = "";
  luaL_checkstack(L, 4, "anomaly");
  if (find_caller(L, &ar)) snprintf(line, sizeof line, "%s:%d", ar.short_src, ar.currentline);
  lm_anomaly_at(line);
}

/* Pushes the public name of the outermost function of ours that has one (bind_public_names) below the script's. */
static bool push_called(lua_State *L) {
  enum { LEVELS = 40 };
  lua_Debug ar;
  int top = lua_gettop(L);
  lm_reg_get(L, &lm_reg_own_files);
  size_t n = 0;
  const char *prefix = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : "";
  lm_reg_get(L, &lm_reg_public_names);
  lua_pushnil(L);
  for (int level = 0; lua_istable(L, top + 2) && level <= LEVELS && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Slf", &ar);
    if (ar.currentline > 0 && !is_own(&ar, prefix, n)) break;
    lua_rawget(L, top + 2);
    if (lua_type(L, -1) == LUA_TSTRING) lua_replace(L, top + 3);
    lua_settop(L, top + 3);
  }
  lua_settop(L, top + 3);
  lua_replace(L, top + 1);
  bool found = lua_type(L, top + 1) == LUA_TSTRING;
  lua_settop(L, found ? top + 1 : top);
  return found;
}

/* What begins with an op's name begins with that of the function that the script called. */
static int raise_message(lua_State *L, const char *message) {
  char op[64] = "";
  luaL_checkstack(L, 12, "error");
  lm_push_where(L);
  size_t n = strcspn(message, ":");
  if (n < sizeof op && message[n] == ':') snprintf(op, sizeof op, "%.*s", (int)n, message);
  bool renamed = op[0] && lm_op_find(op) >= 0 && push_called(L);
  lua_pushstring(L, renamed ? message + n : message);
  lua_concat(L, renamed ? 3 : 2);
  return lua_error(L);
}

int lm_raise(lua_State *L, lm_status status) {
  if (status == LM_E_LUA) { /* a callback's own error passes through unchanged */
    lm_reg_get(L, &lm_reg_error);
    lua_rawgeti(L, -1, 1);
    lua_pushnil(L);
    lua_rawseti(L, -3, 1);
    return lua_error(L);
  }
  char message[1024];
  snprintf(message, sizeof message, "%s", lm_error());
  return raise_message(L, message);
}

int lm_raise_text(lua_State *L, const char *format, ...) {
  char message[1024];
  va_list args;
  va_start(args, format);
  lm_write_v(message, sizeof message, format, args);
  va_end(args);
  return raise_message(L, message);
}

const char *lm_to_text(lua_State *L, int i) {
  size_t n;
  if (lua_type(L, i) != LUA_TSTRING) return NULL;
  const char *text = lua_tolstring(L, i, &n);
  return strlen(text) == n ? text : NULL;
}

/* Its first 60 bytes, with zero bytes as they are written in Lua. */
static const char *got_string(lua_State *L, int i, char *out, size_t capacity) {
  enum { SOME = 64 };
  char start[2 * SOME + 1];
  size_t n;
  const char *text = lua_tolstring(L, i, &n);
  lm_write_bytes(start, sizeof start, text, n < SOME ? n : SOME);
  snprintf(out, capacity, "string '%s'%s", lm_brief(start, 60), memchr(text, 0, n) ? ", which has a zero byte" : "");
  return out;
}

/* The name of the class that the value at i is, or is an object of (base/class.lua); NULL for others. Lua's own memory,
 * which the class keeps alive. */
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

const char *lm_got(lua_State *L, const lm_lua *s, int i) {
  static _Thread_local char text[200];
  bool object;
  const char *name = class_name(L, i, &object);
  lm_tensor_handle *b;
  int64_t whole;
  if (name) {
    snprintf(text, sizeof text, object ? "an object of class %s" : "the class %s itself", lm_brief(name, 60));
    return text;
  }
  switch (lua_type(L, i)) {
    case LUA_TNONE: return "nothing";
    case LUA_TBOOLEAN: return lua_toboolean(L, i) ? "true" : "false";
    case LUA_TNUMBER: snprintf(text, sizeof text, "number %.14g", lua_tonumber(L, i)); return text;
    case LUA_TSTRING: return got_string(L, i, text, sizeof text);
    case LUA_TUSERDATA:
      b = lm_to_tensor_handle(L, s, i);
      if (!b) return "userdata that is no tensor";
      if (!b->t) return "a dead tensor";
      snprintf(text, sizeof text, "a tensor %s", lm_shape_of(b->t));
      return text;
    case LUA_TTABLE:
      if (!luaL_getmetafield(L, i, "__library")) return "table"; /* options.strict */
      snprintf(text, sizeof text, "the library %s itself (its functions are called with a dot, not a colon)",
               lua_tostring(L, -1));
      lua_pop(L, 1);
      return text;
    default:
      if (lm_to_int64(L, s, i, &whole)) {
        snprintf(text, sizeof text, "integer %lld", (long long)whole);
        return text;
      }
      return lua_typename(L, lua_type(L, i));
  }
}

/* own_files(prefix): chunk names that start so are ours, and errors are raised beyond them. */
static int bind_own_files(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  lua_pushlightuserdata(L, (void *)&lm_reg_own_files);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

/* public_names(table): by function of ours, what scripts call it; errors of ops that it calls speak of it. */
static int bind_public_names(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_pushlightuserdata(L, (void *)&lm_reg_public_names);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

static int bind_error_at_caller(lua_State *L) {
  if (lua_isnoneornil(L, 1)) return lm_raise_text(L, "error_at_caller: a message expected");
  if (lua_type(L, 1) != LUA_TSTRING) { /* an error value that is no text goes as it is */
    lua_settop(L, 1);
    return lua_error(L);
  }
  luaL_checkstack(L, 8, "error");
  lm_push_where(L);
  lua_pushvalue(L, 1);
  lua_concat(L, 2);
  return lua_error(L);
}

/* nearest(word, list) */
static int bind_nearest(lua_State *L) {
  enum { MOST = 4096 }; /* the library itself has more than 512 */
  const char *names[MOST];
  if (lua_type(L, 1) != LUA_TSTRING || lua_type(L, 2) != LUA_TTABLE) {
    return lm_raise_text(L, "nearest: a string and a list of strings expected");
  }
  int n = 0;
  for (int i = 1; n < MOST; i++) { /* the list keeps the strings alive */
    lua_rawgeti(L, 2, i);
    if (lua_type(L, -1) != LUA_TSTRING) break;
    names[n++] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  const char *near = lm_nearest(lua_tostring(L, 1), n, names);
  return lm_return_text(L, near);
}

const luaL_Reg lm_error_functions[] = {{"own_files", bind_own_files},
                                       {"public_names", bind_public_names},
                                       {"error_at_caller", bind_error_at_caller},
                                       {"nearest", bind_nearest},
                                       {NULL, NULL}};
