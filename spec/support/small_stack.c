/* Runs Lua chunks, one after another in one state, on a thread whose stack has a given size: small_stack KB CHUNK...
 * Prints for each chunk the most bytes of the stack that were in use, or its error. */
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAINT = 0xA5, GUARD = 64 << 10 };

typedef struct work {
  int n;
  char **chunks;
  unsigned char *stack;
  size_t bytes;
  int failed;
} work;

/* Paints the stack below this frame, except what this function itself uses. */
static void __attribute__((noinline)) paint(const work *w) {
  unsigned char *here = __builtin_frame_address(0);
  volatile unsigned char *p = w->stack;
  for (size_t i = 0, n = (size_t)(here - w->stack) - 256; i < n; i++) p[i] = PAINT;
}

static size_t used(const work *w) {
  size_t i = 0;
  while (i < w->bytes && w->stack[i] == PAINT) i++;
  return w->bytes - i;
}

static void *run(void *arg) {
  work *w = arg;
  lua_State *L = luaL_newstate();
  if (!L) exit(2);
  luaL_openlibs(L);
  for (int i = 0; i < w->n && !w->failed; i++) {
    paint(w);
    w->failed = luaL_loadstring(L, w->chunks[i]) || lua_pcall(L, 0, 0, 0);
    if (w->failed)
      printf("%s\n", lua_tostring(L, -1));
    else
      printf("used %zu\n", used(w));
    fflush(stdout);
  }
  lua_close(L);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  work w = {.n = argc - 2, .chunks = argv + 2, .bytes = (size_t)atoi(argv[1]) << 10};
  w.stack = mmap(NULL, GUARD + w.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (w.stack == MAP_FAILED || mprotect(w.stack, GUARD, PROT_NONE) != 0) return 2;
  w.stack += GUARD;
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstack(&attributes, w.stack, w.bytes) != 0 || pthread_create(&thread, &attributes, run, &w) != 0)
    return 2;
  pthread_join(thread, NULL);
  return w.failed;
}
