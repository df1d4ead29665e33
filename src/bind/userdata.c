/* Makes and checks userdata of types other than tensors; a type's metatable is made with its first object. */
#include "base/message.h"
#include "bind/bind.h"

static int collect(lua_State *L) {
  const lm_object_type *type = lua_touserdata(L, lua_upvalueindex(1));
  void *object = lm_to_object(L, 1, type);
  if (object) type->close(object);
  return 0;
}

static void push_methods(lua_State *L, const luaL_Reg *methods, const luaL_Reg *end) {
  lua_newtable(L);
  for (; methods < end; methods++) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_pushcclosure(L, methods->func, 2);
    lua_setfield(L, strcmp(methods->name, "__tostring") == 0 ? -3 : -2, methods->name);
  }
  lua_setfield(L, -2, "__index");
}

void *lm_object_new(lua_State *L, const lm_object_type *type) {
  void *object = lua_newuserdata(L, type->bytes);
  memset(object, 0, type->bytes);
  if (luaL_newmetatable(L, type->name)) {
    lua_pushlightuserdata(L, (void *)type);
    lua_pushcclosure(L, collect, 1);
    lua_setfield(L, -2, "__gc");
    lua_pushstring(L, type->name);
    lua_setfield(L, -2, "__metatable");
    if (type->methods) push_methods(L, type->methods, type->methods_end);
  }
  lua_setmetatable(L, -2);
  return object;
}

void *lm_to_object(lua_State *L, int i, const lm_object_type *type) {
  void *object = lua_touserdata(L, i);
  if (!object || !lua_getmetatable(L, i)) return NULL;
  luaL_getmetatable(L, type->name);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? object : NULL;
}

void *lm_need_object(lua_State *L, int i, const lm_object_type *type, const char *fn) {
  void *object = lm_to_object(L, i, type);
  if (!object) lm_raise_arg(L, i, fn, lm_text("argument %d", i), type->noun);
  return object;
}

void *lm_need_held(lua_State *L, int i, const lm_object_type *type, const char *fn) {
  void *held = *(void **)lm_need_object(L, i, type, fn);
  if (!held) lm_raise(L, lm_fail_value(fn, lm_text("the %s", strchr(type->noun, ' ') + 1), "open", "a closed one"));
  return held;
}

int lm_object_close(lua_State *L, const lm_object_type *type, const char *fn) {
  type->close(lm_need_object(L, 1, type, fn));
  return 0;
}

static void close_buffer(void *object) { lm_bytes_free(object); }

lm_bytes *lm_buffer_new(lua_State *L) {
  static const lm_object_type type = {"luminary.buffer", sizeof(lm_bytes), close_buffer, NULL, NULL, NULL};
  return lm_object_new(L, &type);
}

void lm_object_keeps(lua_State *L, int i) {
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, i);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, -2);
}
