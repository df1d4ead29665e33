/* A host of several Lua states: host SCRIPT STATES [keep]. Runs SCRIPT in each state with the global STATE from 1, each
 * on a thread of its own, one after another; closes each after its run or, with keep, all of them at the end. */
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *script;
static int failed;

static void *run(void *state) {
  lua_State *L = state;
  if (luaL_dofile(L, script) != 0) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    failed = 1;
  }
  return NULL;
}

int main(int argc, char **argv) {
  int n = argc > 2 ? atoi(argv[2]) : 0, keep = argc > 3;
  lua_State **states = calloc((size_t)n + 1, sizeof *states);
  script = argv[1];
  if (!n || !states) return 2;
  for (int i = 0; i < n && !failed; i++) {
    pthread_t thread;
    lua_State *L = luaL_newstate();
    if (!L) return 2;
    luaL_openlibs(L);
    lua_pushinteger(L, i + 1);
    lua_setglobal(L, "STATE");
    if (pthread_create(&thread, NULL, run, L) != 0) return 2;
    pthread_join(thread, NULL);
    states[i] = L;
    if (!keep) lua_close(L);
  }
  for (int i = 0; i < n && keep; i++)
    if (states[i]) lua_close(states[i]);
  free(states);
  return failed;
}
