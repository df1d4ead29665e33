/* Processes of the launcher (mp/supervisor.h).
 *
 *   process_supervisor()     a supervisor, or an error if there is one already; its methods:
 *     :start{argv = list, env = list of "NAME=value" or "NAME" to leave it out, input = bool}   id, pid
 *     :next(seconds)         waits (< 0: for ever); gives nothing, or one of
 *                              "output", id, stream (1 or 2), text ("" at its end)
 *                              "ended", id, code, signal (nil if it exited)
 *                              "signal", number
 *                              "closed", stream    nobody reads our own output there
 *     :signal(id, number)    :print(stream, text)    :printed()    :sweep(seconds) -> how many are left
 *     :file() -> path        :port() -> number       :close()
 *   process_self()           path of the program that runs here
 *   process_cores()          cores it may use
 *   signal_name(number)      "SIGKILL"
 */
#include <limits.h>
#include <unistd.h>

#include "base/mem.h"
#include "bind/bind.h"
#include "mp/supervisor.h"

static const char type_name[] = "luminary.supervisor";

static int close_supervisor(lua_State *L) {
  lm_supervisor **s = luaL_checkudata(L, 1, type_name);
  lm_supervisor_free(*s);
  *s = NULL;
  return 0;
}

static lm_supervisor *check(lua_State *L) {
  lm_supervisor **s = luaL_checkudata(L, 1, type_name);
  if (!*s) lm_raise_text(L, "process: the supervisor is closed");
  return *s;
}

/* The list of strings in field `name` of the options at 2, as a closed array that lives as long as the stack does. */
static const char **check_list(lua_State *L, const char *name, int *n) {
  if (!lm_field(L, 2, name) || lua_type(L, -1) != LUA_TTABLE) {
    lm_raise_text(L, "process: start: %s: a list of strings expected", name);
  }
  int list = lua_gettop(L);
  *n = (int)lua_objlen(L, list);
  const char **out = lua_newuserdata(L, (size_t)(*n + 1) * sizeof *out);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, list, i + 1);
    out[i] = lm_to_text(L, -1); /* kept alive by the list */
    if (!out[i]) lm_raise_text(L, "process: start: %s: a list of strings expected, without zero bytes", name);
    lua_pop(L, 1);
  }
  out[*n] = NULL;
  return out;
}

static int bind_start(lua_State *L) {
  lm_supervisor *s = check(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  int nargs, nenv, id = 0;
  pid_t pid = 0;
  char **env = NULL;
  const char **argv = check_list(L, "argv", &nargs), **changes = check_list(L, "env", &nenv);
  if (nargs == 0) return lm_raise_text(L, "process: start: argv: at least the program's path expected");
  bool input = lm_field(L, 2, "input") && lua_toboolean(L, -1);
  lm_status status;
  TRY(lm_process_env(nenv, changes, &env));
  TRY(lm_supervisor_start(s, argv, env, input, &id, &pid));
done:
  lm_free(env);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushinteger(L, id);
  lua_pushinteger(L, pid);
  return 2;
}

static int bind_next(lua_State *L) {
  lm_supervisor *s = check(L);
  double seconds = luaL_checknumber(L, 2);
  lm_event event;
  lm_status status = lm_supervisor_next(s, seconds, &event);
  if (status != LM_OK) return lm_raise(L, status);
  switch (event.kind) {
    case LM_EVENT_NONE: return 0;
    case LM_EVENT_OUTPUT:
      lua_pushliteral(L, "output");
      lua_pushinteger(L, event.id);
      lua_pushinteger(L, event.stream);
      lua_pushlstring(L, event.n ? event.text : "", event.n);
      return 4;
    case LM_EVENT_ENDED:
      lua_pushliteral(L, "ended");
      lua_pushinteger(L, event.id);
      lua_pushinteger(L, event.code);
      if (!event.signal) return 3;
      lua_pushinteger(L, event.signal);
      return 4;
    case LM_EVENT_SIGNAL:
      lua_pushliteral(L, "signal");
      lua_pushinteger(L, event.signal);
      return 2;
    case LM_EVENT_CLOSED:
      lua_pushliteral(L, "closed");
      lua_pushinteger(L, event.stream);
      return 2;
  }
  return 0;
}

static int bind_signal(lua_State *L) {
  lm_supervisor *s = check(L);
  lm_supervisor_signal(s, (int)luaL_checkinteger(L, 2), (int)luaL_checkinteger(L, 3));
  return 0;
}

static int bind_print(lua_State *L) {
  lm_supervisor *s = check(L);
  int stream = (int)luaL_checkinteger(L, 2);
  size_t n;
  const char *text = luaL_checklstring(L, 3, &n);
  luaL_argcheck(L, stream == 1 || stream == 2, 2, "1 or 2 expected");
  lm_status status = lm_supervisor_print(s, stream, text, n);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

static int bind_printed(lua_State *L) {
  lua_pushboolean(L, lm_supervisor_printed(check(L)));
  return 1;
}

static int bind_sweep(lua_State *L) {
  int left = 0;
  lm_supervisor *s = check(L);
  lm_supervisor_sweep(s, luaL_checknumber(L, 2), &left);
  lua_pushinteger(L, left);
  return 1;
}

static int bind_file(lua_State *L) {
  char path[64];
  lm_status status = lm_supervisor_file(check(L), path, sizeof path);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushstring(L, path);
  return 1;
}

static int bind_port(lua_State *L) {
  int port = 0;
  lm_status status = lm_supervisor_port(check(L), &port);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushinteger(L, port);
  return 1;
}

static int bind_supervisor(lua_State *L) {
  static const luaL_Reg methods[] = {{"start", bind_start}, {"next", bind_next},       {"signal", bind_signal},
                                     {"print", bind_print}, {"printed", bind_printed}, {"sweep", bind_sweep},
                                     {"file", bind_file},   {"port", bind_port},       {"close", close_supervisor},
                                     {NULL, NULL}};
  lm_supervisor **s = lua_newuserdata(L, sizeof *s);
  *s = NULL;
  if (luaL_newmetatable(L, type_name)) {
    lua_newtable(L);
    for (const luaL_Reg *m = methods; m->name; m++) { /* they need none of lm_lua's state but where errors are raised */
      lua_pushcfunction(L, m->func);
      lua_setfield(L, -2, m->name);
    }
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, close_supervisor);
    lua_setfield(L, -2, "__gc");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  lm_status status = lm_supervisor_new(s);
  return status == LM_OK ? 1 : lm_raise(L, status);
}

static int bind_self(lua_State *L) {
  char path[PATH_MAX];
  lm_status status = lm_process_self(path, sizeof path);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushstring(L, path);
  return 1;
}

static int bind_cores(lua_State *L) {
  lua_pushinteger(L, lm_process_cores());
  return 1;
}

static int bind_signal_name(lua_State *L) {
  lua_pushstring(L, lm_signal_name((int)luaL_checkinteger(L, 1)));
  return 1;
}

const luaL_Reg lm_process_functions[] = {{"process_supervisor", bind_supervisor},
                                         {"process_self", bind_self},
                                         {"process_cores", bind_cores},
                                         {"signal_name", bind_signal_name},
                                         {NULL, NULL}};
