/* Calls Lua functions for the C interface: passes tensors as handles that end with the call, and returns tensors. */
#include "bind/host_call.h"

#include "bind/bind.h"

/* Notes the error at the top: its text and lm_status. One that luminary.c_interface classified is {status, message}. */
static void note_error(lua_State *L, lm_host_call *c, int code) {
  const int e = lua_gettop(L);
  c->status = code == LUA_ERRMEM ? LM_E_OOM : lm_raised_status(L, e);
  if (lua_type(L, e) == LUA_TTABLE) {
    lua_rawgeti(L, e, 1);
    lua_rawgeti(L, e, 2);
    const double number = lua_type(L, -2) == LUA_TNUMBER ? lua_tonumber(L, -2) : 0;
    if (number >= 1 && number <= LM_E_LUA && lua_type(L, -1) == LUA_TSTRING) { /* else a table of the script's own */
      const lm_status own = lm_raised_status(L, -1); /* says more than that a file could not be loaded */
      c->status = own == LM_E_OOM || own == LM_E_MISSING ? own : (lm_status)number;
      lua_replace(L, e);
    }
  }
  const char *text = lua_type(L, e) == LUA_TSTRING ? lua_tostring(L, e) : NULL;
  lm_write(c->message, sizeof c->message, "%s%s", text ? "" : "the Lua code raised a ",
           text ? text : luaL_typename(L, e));
}

int lm_bind_host_call(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_host_call *c = lua_touserdata(L, 1);
  const int given = lua_gettop(L);
  luaL_checkstack(L, given + 2 * c->n + 16, "too many tensors");
  lm_need(L, lm_leave());
  lm_follower *follower = lm_follower_swap(NULL); /* a compiled function of another state of this thread */
  for (int i = 0; i < c->n; i++) {
    lm_tensor_handle *b = lm_tensor_handle_new(L); /* raises when memory has run out, before there is a reference */
    lm_tensor_handle_fill(s, b, lm_retain(c->in[i]));
  }
  const int top = lua_gettop(L);
  for (int i = 2; i <= top; i++) lua_pushvalue(L, i);
  const int code = lua_pcall(L, top - 2, LUA_MULTRET, 0);
  lm_follower_swap(follower);
  c->count = code == 0 ? lua_gettop(L) - top : 0;
  if (code != 0) {
    note_error(L, c, code);
  } else if (c->out) {
    for (int i = 0; i < c->count && i < c->capacity; i++) c->out[i] = lm_retain(lm_to_tensor(L, s, top + 1 + i));
  }
  for (int i = given + 1; i <= top; i++) {
    lm_tensor_handle *b = lua_touserdata(L, i);
    if (b->t) lm_tensor_handle_drop(s, b, "was an argument of a call from C, which has returned; keep x:clone()");
  }
  return code == 0 && !c->out ? c->count : 0;
}
