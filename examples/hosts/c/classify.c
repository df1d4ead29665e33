/* Computes with a network in a C program: each thread has a Lua state of its own, and all of them share the network's
 * weights, which are mapped from one file.
 *
 *   classify WEIGHTS THREADS CALLS
 *
 * Prints a line for each thread: the number of calls and the sum of the classes that it got. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEATURES = 4, MOST_THREADS = 64 };

typedef struct job {
  pthread_t thread;
  const char *weights;
  int number, calls, sum;
  char problem[512]; /* "" for none */
} job;

/* Calls classify(numbers) of classify.lua, which is on the top of the stack; returns a class, or -1 with its message in
 * j->problem. */
static int classify(lua_State *L, job *j, const double *numbers) {
  lua_pushvalue(L, -1);
  lua_createtable(L, FEATURES, 0);
  for (int i = 0; i < FEATURES; i++) {
    lua_pushnumber(L, numbers[i]);
    lua_rawseti(L, -2, i + 1);
  }
  int failed = lua_pcall(L, 1, 1, 0);
  int class = failed ? -1 : (int)lua_tointeger(L, -1);
  if (failed) snprintf(j->problem, sizeof j->problem, "%s", lua_tostring(L, -1));
  lua_pop(L, 1);
  return class;
}

static void *run(void *argument) {
  job *j = argument;
  lua_State *L = luaL_newstate();
  if (!L) return NULL;
  luaL_openlibs(L);
  lua_pushstring(L, j->weights);
  lua_setglobal(L, "WEIGHTS");
  if (luaL_dofile(L, CLASSIFY_LUA) != 0) {
    snprintf(j->problem, sizeof j->problem, "%s", lua_tostring(L, -1));
  } else {
    for (int i = 0; i < j->calls && !j->problem[0]; i++) {
      double numbers[FEATURES] = {j->number - 3, i % 7 - 3, 1, i % 3 - 1};
      j->sum += classify(L, j, numbers);
    }
  }
  lua_close(L);
  return NULL;
}

int main(int argc, char **argv) {
  static job jobs[MOST_THREADS];
  int threads = argc == 4 ? atoi(argv[2]) : 0, failed = 0;
  if (threads < 1 || threads > MOST_THREADS) {
    fprintf(stderr, "usage: classify WEIGHTS THREADS CALLS, at most %d threads\n", MOST_THREADS);
    return 2;
  }
  for (int i = 0; i < threads; i++) {
    jobs[i] = (job){.weights = argv[1], .number = i + 1, .calls = atoi(argv[3])};
    if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]) != 0) return 1;
  }
  for (int i = 0; i < threads; i++) {
    job *j = &jobs[i];
    pthread_join(j->thread, NULL);
    if (j->problem[0]) {
      fprintf(stderr, "thread %d: %s\n", j->number, j->problem);
      failed = 1;
    } else {
      printf("thread %d: %d calls, sum %d\n", j->number, j->calls, j->sum);
    }
  }
  return failed;
}
