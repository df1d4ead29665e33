/* Userdata of ours that are no tensors: a metatable a type, made with its first object. */
#include "bind/bind.h"

void *lm_object_new(lua_State *L, const lm_object_type *type) {
  void *object = lua_newuserdata(L, type->bytes);
  memset(object, 0, type->bytes);
  if (luaL_newmetatable(L, type->name)) {
    lua_pushcfunction(L, type->gc);
    lua_setfield(L, -2, "__gc");
    lua_pushstring(L, type->name);
    lua_setfield(L, -2, "__metatable");
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
