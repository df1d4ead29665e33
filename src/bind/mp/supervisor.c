/* Binds the launcher's supervisor of processes (mp/supervisor.h).
 *
 *   process_supervisor()     a supervisor, or an error if one exists already; its methods:
 *     :start{argv = list, env = list of "NAME=value" or "NAME" to unset it, input = bool}   id, pid
 *     :next(seconds)         waits (< 0: without limit); returns nothing, or one of
 *                              "output", id, stream (1 or 2), text ("" at its end)
 *                              "ended", id, code, signal (nil if it exited)
 *                              "signal", number
 *                              "closed", stream    nobody reads our own output there
 *                              "ready"             the watched descriptor is readable
 *     :watch(fd)             a descriptor to wait for as well, such as that of core.node_links; -1: none
 *     :signal(id, number)    :print(stream, text)    :printed()    :sweep(seconds) -> the number still running
 *     :file() -> path        :port() -> number       :close()
 *   process_self()           path of this process's executable
 *   process_cores()          the number of cores this process may use
 *   signal_name(number)      "SIGKILL"
 */
#include <limits.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/mem.h"
#include "bind/bind.h"
#include "mp/supervisor.h"

static const lm_object_type supervisor_type;

static lm_supervisor *self(lua_State *L) { return lm_need_held(L, 1, &supervisor_type, "process"); }

static int bind_start(lua_State *L) {
  lm_supervisor *s = self(L);
  lm_need_table(L, 2, "process: start", "the plan");
  lua_settop(L, 2);
  int nargs, nenv, id = 0;
  pid_t pid = 0;
  char **env = NULL;
  lua_getfield(L, 2, "argv"); /* 3 */
  lua_getfield(L, 2, "env");  /* 4 */
  const char **argv = lm_need_strings(L, 3, "process: start", "argv", 0, &nargs),
             **changes = lm_need_strings(L, 4, "process: start", "env", 0, &nenv);
  if (nargs == 0) return lm_raise_text(L, "process: start: argv must have at least the program's path");
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
  static const char *const names[] = {NULL, "output", "ended", "signal", "closed", "ready"}; /* names of kinds */
  lm_supervisor *s = self(L);
  lm_supervisor_event event;
  lua_settop(L, 2);
  lm_need(L, lm_supervisor_next(s, lm_need_number(L, 2, "process: next", "seconds"), &event));
  if (event.kind == LM_SUPERVISOR_NONE) return 0;
  lua_pushstring(L, names[event.kind]);
  if (event.id) lua_pushinteger(L, event.id);
  if (event.stream) lua_pushinteger(L, event.stream);
  if (event.kind == LM_SUPERVISOR_OUTPUT) lua_pushlstring(L, event.n ? event.text : "", event.n);
  if (event.kind == LM_SUPERVISOR_ENDED) lua_pushinteger(L, event.code);
  if (event.signal) lua_pushinteger(L, event.signal);
  return lua_gettop(L) - 2;
}

static int bind_signal(lua_State *L) {
  lm_supervisor *s = self(L);
  lm_supervisor_signal(s, (int)lm_need_int(L, 2, "process: signal", "id"),
                       (int)lm_need_int(L, 3, "process: signal", "number"));
  return 0;
}

static int bind_watch(lua_State *L) {
  lm_supervisor *s = self(L);
  lm_supervisor_watch(s, (int)lm_need_int(L, 2, "process: watch", "fd"));
  return 0;
}

static int bind_print(lua_State *L) {
  lm_supervisor *s = self(L);
  int stream = (int)lm_need_int(L, 2, "process: print", "stream");
  size_t n;
  const char *text = lm_need_string(L, 3, "process: print", "text", &n);
  if (stream != 1 && stream != 2) return lm_raise_arg(L, 2, "process: print", "stream", "1 or 2");
  return lm_return(L, lm_supervisor_print(s, stream, text, n), 0);
}

static int bind_printed(lua_State *L) { return lm_return_bool(L, lm_supervisor_printed(self(L))); }

static int bind_sweep(lua_State *L) {
  int left = 0;
  lm_supervisor *s = self(L);
  lm_supervisor_sweep(s, lm_need_number(L, 2, "process: sweep", "seconds"), &left);
  return lm_return_int(L, left);
}

static int bind_file(lua_State *L) {
  char path[64];
  lm_need(L, lm_supervisor_file(self(L), path, sizeof path));
  return lm_return_text(L, path);
}

static int bind_port(lua_State *L) {
  int port = 0;
  lm_need(L, lm_supervisor_port(self(L), &port));
  return lm_return_int(L, port);
}

static int bind_close(lua_State *L) { return lm_object_close(L, &supervisor_type, "process"); }

static const luaL_Reg methods[] = {{"start", bind_start},
                                   {"next", bind_next},
                                   {"signal", bind_signal},
                                   {"print", bind_print},
                                   {"printed", bind_printed},
                                   {"sweep", bind_sweep},
                                   {"file", bind_file},
                                   {"port", bind_port},
                                   {"close", bind_close},
                                   {"watch", bind_watch},
                                   {NULL, NULL}};
LM_HELD_TYPE(supervisor_type, lm_supervisor, lm_supervisor_free, "luminary.supervisor", "a supervisor", methods);

LM_FUNCTION(process_supervisor) { return lm_return(L, lm_supervisor_new(lm_object_new(L, &supervisor_type)), 1); }

LM_FUNCTION(process_self) {
  char path[PATH_MAX];
  lm_need(L, lm_process_self(path, sizeof path));
  return lm_return_text(L, path);
}

LM_FUNCTION(process_cores) { return lm_return_int(L, lm_cores()); }

LM_FUNCTION(signal_name) { return lm_return_text(L, lm_signal_name((int)lm_need_int(L, 1, "signal_name", "number"))); }
