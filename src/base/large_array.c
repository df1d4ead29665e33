#include "base/large_array.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { STACK = 512 << 10 /* bytes; untouched pages take no memory */, ALIGNED = 64 };

static _Alignas(ALIGNED) char spare[STACK]; /* stack for threads that cannot map their own, one at a time */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key;
static _Thread_local char *base;
static _Thread_local size_t used;

bool lm_large_ready(void) {
  if (base) return true;
  void *memory = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (pthread_setspecific(key, memory) != 0) {
    munmap(memory, STACK);
    return false;
  }
  base = memory;
  return true;
}

void *lm_large_push(size_t bytes) {
  if (!lm_large_ready()) {
    pthread_mutex_lock(&spare_lock);
    base = spare;
  }
  char *at = base + used;
  used += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
  if (used > STACK) abort(); /* no call uses more than 300 KB */
  return at;
}

void lm_large_pop(void *pushed) {
  char *at = *(char **)pushed;
  if (!at) return;
  used = (size_t)(at - base);
  if (used > 0 || base != spare) return;
  base = NULL;
  pthread_mutex_unlock(&spare_lock);
}

static void release(void *memory) {
  munmap(memory, STACK);
  base = NULL;
}

static void renew_lock(void) { /* a forked child lacks the threads that held it */
  if (base != spare) pthread_mutex_init(&spare_lock, NULL);
}

__attribute__((constructor)) static void start(void) {
  pthread_key_create(&key, release);
  pthread_atfork(NULL, NULL, renew_lock);
}
