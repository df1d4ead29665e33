#include "base/mem.h"

#include "base/message.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Atomic long fail_from; /* number of the first allocation to fail; 0: none */
static _Atomic long asked;     /* number of allocations while fail_from is set */

void lm_alloc_fail_from(long nth) {
  atomic_store(&asked, 0);
  atomic_store(&fail_from, nth);
}

long lm_alloc_count(void) { return atomic_load(&asked); }

bool lm_alloc_must_fail(void) {
  long from = atomic_load_explicit(&fail_from, memory_order_relaxed);
  if (from == 0) return false;
  return atomic_fetch_add(&asked, 1) + 1 >= from;
}

static void *need_memory(void *p, size_t bytes) {
  if (!p) lm_fail_memory("%zu bytes", bytes);
  return p;
}

void *lm_malloc(size_t bytes) { return need_memory(lm_alloc_must_fail() ? NULL : malloc(bytes ? bytes : 1), bytes); }

void *lm_calloc(size_t count, size_t size) {
  bool none = count == 0 || size == 0;
  return need_memory(lm_alloc_must_fail() ? NULL : calloc(none ? 1 : count, none ? 1 : size), count * size);
}

void *lm_realloc(void *p, size_t bytes) {
  return need_memory(lm_alloc_must_fail() ? NULL : realloc(p, bytes ? bytes : 1), bytes);
}

char *lm_copy_text(const char *text) {
  size_t bytes = text ? strlen(text) + 1 : 0;
  char *copy = text ? lm_malloc(bytes) : NULL;
  return copy ? memcpy(copy, text, bytes) : NULL;
}

void lm_free(void *p) { free(p); }

bool lm_list_grow_from(const void *first, void *list, size_t *capacity, size_t n, size_t size) {
  void *now = *(void **)list;
  bool borrowed = now == first; /* both are NULL in an empty list */
  if (n <= *capacity) return true;
  size_t more = *capacity + *capacity / 2 + 16;
  if (more < n) more = n;
  void *grown = more > SIZE_MAX / size ? NULL : lm_realloc(borrowed ? NULL : now, more * size);
  if (!grown) return false;
  if (borrowed && *capacity > 0) memcpy(grown, now, *capacity * size);
  *(void **)list = grown;
  *capacity = more;
  return true;
}

bool lm_list_grow(void *list, size_t *capacity, size_t n, size_t size) {
  return lm_list_grow_from(NULL, list, capacity, n, size);
}
