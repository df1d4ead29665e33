#include "tensor/free_list.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/message.h"

/* AddressSanitizer must see each allocation and free. */
#if defined(__SANITIZE_ADDRESS__)
enum { KEEP = 0 };
#else
enum { KEEP = 16384 }; /* most free headers per kind and thread; one cycle of the collector frees about as many */
#endif

typedef struct free_lists {
  lm_tensor *tensors;
  lm_storage *storages;
  int ntensors, nstorages;
  bool drained_at_exit; /* true once this thread's destructor is armed */
} free_lists;

static _Thread_local free_lists lists;
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic long live;

static void drain_lists(void *unused) {
  (void)unused;
  for (lm_tensor *t = lists.tensors, *next; t; t = next) {
    next = t->next;
    lm_free(t);
  }
  for (lm_storage *s = lists.storages, *next; s; s = next) {
    next = s->next;
    free(s);
  }
  lists = (free_lists){0};
}

static void make_key(void) { pthread_key_create(&at_exit, drain_lists); }

/* Sets a value for the key, without which the destructor does not run; the main thread's never does. */
static void arm_destructor(void) {
  pthread_once(&once, make_key);
  lists.drained_at_exit = pthread_setspecific(at_exit, &at_exit) == 0;
}
__attribute__((destructor)) static void drain_main_thread(void) { drain_lists(NULL); }

/* Prefetches the next header, which the caches evicted while it waited for Lua's collector. A taken header keeps its
 * `next`: headers taken in sequence tend to be collected in sequence. */
static void prefetch(const void *next, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)next + at, 1);
}

static void *out_of_memory(size_t bytes) {
  lm_fail_memory("%zu bytes", bytes);
  return NULL;
}

lm_tensor *lm_header_take(void) {
  lm_tensor *t = lists.tensors;
  if (!t) {
    if (!(t = lm_malloc(sizeof *t))) return NULL;
  } else {
    if (lm_alloc_must_fail()) return out_of_memory(sizeof *t);
    lists.tensors = t->next;
    prefetch(t->next, sizeof *t);
    lists.ntensors--;
  }
  atomic_init(&t->rc, 1);
  t->number = false;
  t->storage = NULL;
  t->data = NULL;
  t->grad = NULL;
  atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
  return t;
}

void lm_header_put(lm_tensor *t) {
  atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
  if (!lists.drained_at_exit) arm_destructor();
  if (!lists.drained_at_exit || lists.ntensors >= KEEP) {
    lm_free(t);
    return;
  }
  __builtin_prefetch(t->next, 1);
  t->next = lists.tensors;
  lists.tensors = t;
  lists.ntensors++;
}

_Atomic uint32_t lm_storage_era;

lm_storage *lm_storage_take(void) {
  if (lm_alloc_must_fail()) return out_of_memory(sizeof(lm_storage));
  lm_storage *s = lists.storages;
  if (s) {
    lists.storages = s->next;
    prefetch(s->next, sizeof *s);
    lists.nstorages--;
  } else if (posix_memalign((void **)&s, _Alignof(lm_storage), sizeof *s) != 0) {
    return out_of_memory(sizeof *s);
  }
  atomic_init(&s->rc, 1);
  atomic_init(&s->passed, false);
  atomic_init(&s->version, 0);
  s->source = NULL;
  atomic_init(&s->writer, -1);
  atomic_init(&s->used, 0);
  s->bytes = 0;
  s->data = NULL;
  s->foreign_release = NULL;
  s->owner = NULL;
  s->whole = NULL;
  s->prepacked = NULL;
  atomic_init(&s->prepack_users, 0);
  s->era = atomic_load_explicit(&lm_storage_era, memory_order_relaxed);
  return s;
}

void lm_storage_put(lm_storage *s) {
  if (!lists.drained_at_exit) arm_destructor();
  if (!lists.drained_at_exit || lists.nstorages >= KEEP) {
    free(s);
    return;
  }
  s->next = lists.storages;
  lists.storages = s;
  lists.nstorages++;
}

long lm_live_tensors(void) { return atomic_load_explicit(&live, memory_order_relaxed); }
