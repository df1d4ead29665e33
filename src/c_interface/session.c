/* Makes and ends sessions: a Lua state with its lock, in which luminary.c_interface is loaded. */
#include "c_interface/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <luajit.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/environment_variable.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/plugin.h"
#include "base/thread.h"
#include "device/alloc.h"
#include "device/driver.h"

static _Thread_local struct {
  const lum_session *session;
  char text[1024], other[1024];
} last; /* this thread's last failure; the copy of a session's message */

lum_status lm_note(lum_session *s, lm_status status, const char *message) {
  if (status == LM_OK) return LUM_OK;
  last.session = s;
  lm_write(last.text, sizeof last.text, "%s", message);
  if (s) {
    pthread_mutex_lock(&s->note_lock);
    memcpy(s->message, last.text, sizeof last.text);
    pthread_mutex_unlock(&s->note_lock);
  }
  return (lum_status)status;
}

lum_status lm_noted(lum_session *s, lm_status status) { return lm_note(s, status, lm_error()); }

lm_status lm_given(const char *name, const void *argument) {
  return argument ? LM_OK : lm_fail(LM_E_ARG, "%s must not be NULL", name);
}

const char *lum_message(const lum_session *session) {
  if (!session || session == last.session) return last.text;
  lum_session *s = (lum_session *)session; /* its lock is not what the caller promises not to change */
  LM_LOCKED(&s->note_lock);
  memcpy(last.other, s->message, sizeof last.other);
  return last.other;
}

/* Calls body by lua_cpcall, and notes an error that it raised: Lua's own, such as out of memory. */
static lum_status protected_call(lua_State *L, lum_session *noting, lua_CFunction body, void *argument) {
  int code = lua_cpcall(L, body, argument);
  if (code == 0) return LUM_OK;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error without a message";
  lum_status status = lm_note(noting, code == LUA_ERRMEM ? LM_E_OOM : LM_E_LUA, text);
  lua_pop(L, 1);
  return status;
}

lum_status lm_session_call(lum_session *s, lua_CFunction body, void *argument, const lm_host_call *call) {
  if (!s) return lm_note(NULL, LM_E_ARG, "session and model must not be NULL");
  int problem = pthread_mutex_lock(&s->lock);
  if (problem == EOWNERDEAD) pthread_mutex_unlock(&s->lock); /* the Lua state is useless: later calls fail, too */
  if (problem != 0) {
    return lm_note(s, LM_E_STATE,
                   problem == EDEADLK ? "this thread is in a call of the session; make this call after it"
                                      : "a thread ended within a call of the session; free it and make another one");
  }
  atomic_fetch_add(&s->references, 1);
  lum_status status = protected_call(s->L, s, body, argument);
  if (status == LUM_OK && call) status = lm_note(s, call->status, call->message);
  pthread_mutex_unlock(&s->lock);
  lm_session_release(s);
  return status;
}

void lm_session_release(lum_session *s) {
  if (atomic_fetch_sub(&s->references, 1) > 1) return;
  lua_close(s->L);
  pthread_mutex_destroy(&s->lock);
  pthread_mutex_destroy(&s->note_lock);
  lm_free(s);
}

void lum_session_free(lum_session *session) {
  if (session) lm_session_release(session);
}

/* Makes LuaJIT's functions visible to luminary/core.so, also in a program that loaded this library with dlopen, which
 * keeps the symbols of libraries to itself. */
static void show_luajit(void) {
  Dl_info luajit;
  if (dladdr((void *)luaL_newstate, &luajit)) (void)dlopen(luajit.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

enum { FOLDER_BYTES = LM_PLUGIN_PATH + 64 };

static const char file[] = "/luminary/init.lua";

/* Finds the folder with luminary/init.lua above a path: share/lua/5.1 where it is installed, lua in a checkout. */
static bool find_above(char *above, char folder[FOLDER_BYTES]) {
  static const char *const below[] = {"share/lua/5.1", "lua"};
  for (char *slash; (slash = strrchr(above, '/'));) {
    *slash = 0;
    for (int i = 0; i < 2; i++) {
      int n = snprintf(folder, FOLDER_BYTES, "%s/%s%s", above, below[i], file);
      bool found = access(folder, R_OK) == 0;
      folder[n - (int)strlen(file)] = 0;
      if (found) return true;
    }
  }
  return false;
}

/* Finds Luminary's Lua files above this library's own, first with links resolved: /lib may be a link to /usr/lib. */
static __attribute__((noinline)) bool find_lua_folder(char folder[FOLDER_BYTES]) {
  Dl_info self;
  char name[LM_PLUGIN_PATH];
  char *path = dladdr((void *)find_lua_folder, &self) ? realpath(self.dli_fname, NULL) : NULL;
  bool found = path && strlen(path) < LM_PLUGIN_PATH && find_above(path, folder);
  free(path);
  return found || (lm_plugin_folder(name) && find_above(name, folder));
}

/* Fails unless a folder that the caller names has luminary/init.lua. */
static __attribute__((noinline)) lm_status check_lua_folder(const char *folder) {
  char path[FOLDER_BYTES];
  if (strpbrk(folder, ";?")) return lm_fail_value("session", "lua_folder", "a path without ';' and '?'", folder);
  const bool fits = snprintf(path, sizeof path, "%s%s", folder, file) < FOLDER_BYTES;
  if (fits && access(path, R_OK) == 0) return LM_OK;
  if (!fits) errno = ENAMETOOLONG;
  return lm_fail_file("open", path, strerror(errno));
}

typedef struct opening {
  lum_session *s;
  const char *lua_folder;
  int interpret;
} opening;

/* Puts templates before those of LUA_PATH or LUA_CPATH in package.path or package.cpath. */
static void put_first(lua_State *L, const char *field, const char *templates) {
  lua_getglobal(L, "package");
  lua_pushstring(L, templates);
  lua_getfield(L, -2, field);
  lua_concat(L, 2);
  lua_setfield(L, -2, field);
}

static int open_session(lua_State *L) {
  const opening *o = lua_touserdata(L, 1);
  char core[LM_PLUGIN_PATH];
  luaL_openlibs(L);
  if (o->interpret) luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  if (!lm_plugin_folder(core)) return luaL_error(L, "cannot find the folder of libluminary.so");
  *strrchr(core, '/') = 0;
  put_first(L, "cpath", lua_pushfstring(L, "%s/?.so;", core));
  put_first(L, "path", lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", o->lua_folder, o->lua_folder));
  lua_getglobal(L, "require");
  lua_pushliteral(L, "luminary.c_interface");
  lua_call(L, 1, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, LM_HOST_CALL);
  if (lua_isnil(L, -1)) return luaL_error(L, "luminary/core.so is of another version than libluminary_c.so");
  lua_pop(L, 1);
  o->s->functions = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

lum_status lum_session_new(const lum_session_options *options, lum_session **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  char found[FOLDER_BYTES];
  lm_status status;
  opening o = {.lua_folder = LM_OPTION(options, lua_folder), .interpret = LM_OPTION(options, interpret)};
  if (!out) return lm_noted(NULL, lm_given("out", out));
  *out = NULL;
  if (options && options->size == 0) {
    return lm_noted(NULL, lm_fail_int("session", "options->size", "set by LUM_SESSION_OPTIONS", 0));
  }
  pthread_once(&once, show_luajit);
  if (!o.lua_folder) o.lua_folder = lm_variable_get(LM_VAR_LUA_FOLDER);
  if (o.lua_folder && (status = check_lua_folder(o.lua_folder)) != LM_OK) return lm_noted(NULL, status);
  if (!o.lua_folder && find_lua_folder(found)) o.lua_folder = found;
  if (!o.lua_folder) {
    return lm_note(NULL, LM_E_MISSING,
                   "cannot find luminary/init.lua beside the library; set LM_LUA_FOLDER to the folder that has it");
  }
  lum_session *s = lm_calloc(1, sizeof *s);
  if (!s || !(s->L = luaL_newstate())) {
    lm_free(s);
    return lm_note(NULL, LM_E_OOM, "out of memory for a Lua state");
  }
  pthread_mutexattr_t checked;
  pthread_mutexattr_init(&checked);
  pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutexattr_setrobust(&checked, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&s->lock, &checked);
  pthread_mutexattr_destroy(&checked);
  pthread_mutex_init(&s->note_lock, NULL);
  s->references = 1;
  o.s = s;
  lum_status opened = protected_call(s->L, NULL, open_session, &o);
  if (opened == LUM_OK) {
    *out = s;
    return LUM_OK;
  }
  lm_session_release(s);
  return opened == LUM_E_SCRIPT ? LUM_E_MISSING : opened;
}

static int collect(lua_State *L) {
  lua_gc(L, LUA_GCCOLLECT, 0);
  return lua_gc(L, LUA_GCCOLLECT, 0); /* the objects that finalizers released; returns 0 */
}

lum_status lum_session_collect(lum_session *session) {
  lum_status status = lm_session_call(session, collect, NULL, NULL);
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    const int n = kind == LM_CPU ? 1 : lm_driver_of(LM_DEVICE(kind, 0)) ? lm_device_count(kind) : 0;
    for (int i = 0; i < n; i++) lm_memory_empty_cache(LM_DEVICE(kind, i));
  }
  return status;
}
