/* From a status to a Lua error, and the words in it. */
#include <stdarg.h>
#include <stdio.h>

#include "bind/bind.h"
#include "distributed/group/world.h"

static bool is_own(const lua_Debug *ar, const char *prefix, size_t n) {
  return n > 0 && strncmp(ar->source, prefix, n) == 0;
}

/* The first level outside our own Lua files, 0 if there is none. Looks at so many, since each look walks the stack from
 * its top. */
static int find_caller(lua_State *L, lua_Debug *ar) {
  enum { LEVELS = 200 };
  lm_reg_get(L, &lm_reg_own_files);
  size_t n = 0;
  const char *prefix = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : "";
  int found = 0;
  for (int level = 1; !found && level <= LEVELS && lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline > 0 && !is_own(ar, prefix, n)) found = level;
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

static int raise_message(lua_State *L, const char *message) {
  luaL_checkstack(L, 8, "error");
  lm_push_where(L);
  lua_pushstring(L, message);
  lua_concat(L, 2);
  return lua_error(L);
}

/* Has the table on top of the stack a field of that name, which is put in its place? */
static bool go_to(lua_State *L, const char *name) { return lua_istable(L, -1) && lm_field(L, lua_gettop(L), name); }

/* The name, in the table on top of the stack, of the function at f; `op` if it has that too. */
static const char *name_in(lua_State *L, int f, const char *op) {
  int t = lua_gettop(L);
  const char *name = NULL;
  lua_pushnil(L);
  while (lua_next(L, t)) {
    const char *key = lua_rawequal(L, -1, f) ? lm_to_text(L, -2) : NULL;
    if (key && strcmp(key, op) == 0) return key;
    if (key) name = key;
    lua_pop(L, 1);
  }
  return name;
}

/* Of a tensor's method or a function of nn.functional its name: the one it was called by, else that of the function at
 * f. */
static const char *public_name(lua_State *L, const char *name, int f, const char *op) {
  int top = lua_gettop(L);
  bool found = false;
  const char *other = NULL;
  for (int functional = 0; functional < 2 && !found && !other; functional++) {
    if (functional) {
      lua_pushliteral(L, "_LOADED");
      lua_rawget(L, LUA_REGISTRYINDEX);
    } else {
      lm_reg_get(L, &lm_reg_module);
    }
    if (go_to(L, functional ? "luminary.nn.functional" : "methods")) {
      found = name && go_to(L, name);
      if (!found) other = name_in(L, f, op);
    }
    lua_settop(L, top);
  }
  return found ? name : other;
}

/* What the script called, where that is known: x:max(1) is max and not the op max_dim. */
static const char *called(lua_State *L, const char *op) {
  lua_Debug ar;
  const char *name = NULL;
  int caller = find_caller(L, &ar);
  for (int level = caller - 1; !name && level >= 0 && lua_getstack(L, level, &ar); level--) {
    lua_getinfo(L, "nf", &ar);
    lua_CFunction f = lua_tocfunction(L, -1);
    int top = lua_gettop(L);
    if (f == lm_bind_index) {
      name = "x[…]";
    } else if (f == lm_bind_newindex) {
      name = "x[…] = value";
    } else if (f == lm_bind_overload && lua_getupvalue(L, top, 3)) {
      name = ((const lm_overload *)lua_touserdata(L, -1))->name;
    } else if (!f) { /* what is C else has its op's name, or met what another left on a device */
      name = public_name(L, level == caller - 1 ? ar.name : NULL, top, op);
    }
    lua_settop(L, top - 1);
  }
  return name && strcmp(name, "backward") == 0 ? NULL : name; /* which tells of other ops' failures */
}

/* A message that begins with an op's name begins with that of what the script called. */
static void write_renamed(lua_State *L, const char *message, char *out, size_t capacity) {
  char op[64];
  size_t n = strcspn(message, ":");
  if (n > 0 && n < sizeof op) {
    memcpy(op, message, n);
    op[n] = 0;
    const char *name = lm_op_find(op) >= 0 ? called(L, op) : NULL;
    bool same = name && strncmp(name, op, n) == 0 && (name[n] == 0 || strcmp(name + n, "_") == 0);
    if (name && !same) {
      snprintf(out, capacity, "%s%s", name, message + n);
      return;
    }
  }
  snprintf(out, capacity, "%s", message);
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
  luaL_checkstack(L, 8, "error");
  write_renamed(L, lm_error(), message, sizeof message);
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

const luaL_Reg lm_error_functions[] = {
    {"own_files", bind_own_files}, {"error_at_caller", bind_error_at_caller}, {"nearest", bind_nearest}, {NULL, NULL}};
