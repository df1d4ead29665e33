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
 *   process_id()             this process's id
 *   process_cores()          the number of cores this process may use
 *   signal_name(number)      "SIGKILL"
 */
#include <limits.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/mem.h"
#include "bind/bind.h"
#include "mp/supervisor.h"

LM_LIST(lm_methods_of_supervisor);
LM_HELD_TYPE(supervisor, lm_supervisor, lm_supervisor_free, "luminary.supervisor", "a supervisor",
             LM_METHODS_OF(supervisor))

LM_OBJECT_METHOD(supervisor, start, "process: start", (supervisor, s), (table, plan)) {
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

LM_OBJECT_METHOD(supervisor, next, "process: next", (supervisor, s), (number, seconds)) {
  static const char *const names[] = {NULL, "output", "ended", "signal", "closed", "ready"}; /* names of kinds */
  lm_supervisor_event event;
  lm_need(L, lm_supervisor_next(s, seconds, &event));
  if (event.kind == LM_SUPERVISOR_NONE) return 0;
  lua_pushstring(L, names[event.kind]);
  if (event.id) lua_pushinteger(L, event.id);
  if (event.stream) lua_pushinteger(L, event.stream);
  if (event.kind == LM_SUPERVISOR_OUTPUT) lua_pushlstring(L, event.n ? event.text : "", event.n);
  if (event.kind == LM_SUPERVISOR_ENDED) lua_pushinteger(L, event.code);
  if (event.signal) lua_pushinteger(L, event.signal);
  return lua_gettop(L) - 2;
}

LM_OBJECT_METHOD(supervisor, signal, "process: signal", (supervisor, s), (int, id), (int, number)) {
  lm_supervisor_signal(s, (int)id, (int)number);
  return 0;
}

LM_OBJECT_METHOD(supervisor, watch, "process: watch", (supervisor, s), (int, fd)) {
  lm_supervisor_watch(s, (int)fd);
  return 0;
}

LM_OBJECT_METHOD(supervisor, print, "process: print", (supervisor, s), (int, stream), (string, text)) {
  if (stream != 1 && stream != 2) return lm_raise_arg(L, 2, "process: print", "stream", "1 or 2");
  return lm_return(L, lm_supervisor_print(s, (int)stream, text.text, text.n), 0);
}

LM_OBJECT_METHOD(supervisor, printed, "process: printed", (supervisor, s)) {
  return lm_return_bool(L, lm_supervisor_printed(s));
}

LM_OBJECT_METHOD(supervisor, sweep, "process: sweep", (supervisor, s), (number, seconds)) {
  int left = 0;
  lm_supervisor_sweep(s, seconds, &left);
  return lm_return_int(L, left);
}

LM_OBJECT_METHOD(supervisor, file, "process: file", (supervisor, s)) {
  char path[64];
  lm_need(L, lm_supervisor_file(s, path, sizeof path));
  return lm_return_text(L, path);
}

LM_OBJECT_METHOD(supervisor, port, "process: port", (supervisor, s)) {
  int port = 0;
  lm_need(L, lm_supervisor_port(s, &port));
  return lm_return_int(L, port);
}

LM_OBJECT_METHOD(supervisor, close, "process") { return lm_object_close(L, &supervisor_type, "process"); }

LM_FUNCTION(process_supervisor) { return lm_return(L, lm_supervisor_new(lm_object_new(L, &supervisor_type)), 1); }

LM_FUNCTION(process_self) {
  char path[PATH_MAX];
  lm_need(L, lm_process_self(path, sizeof path));
  return lm_return_text(L, path);
}

LM_FUNCTION(process_id) { return lm_return_int(L, getpid()); }

LM_FUNCTION(process_cores) { return lm_return_int(L, lm_cores()); }

LM_FUNCTION(signal_name, (int, number)) { return lm_return_text(L, lm_signal_name((int)number)); }
