#include "tensor/memory_history.h"

#include <pthread.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/interned.h"
#include "base/mem.h"
#include "base/thread.h"
#include "device/recorder.h"

typedef struct noted {
  const lm_storage *storage; /* NULL: empty slot */
  lm_live_memory is;
} noted;

/* Hash table with open addressing, at most half full, guarded by `lock`. */
LM_MUTEX(lock);
static noted *table;
static size_t taken, capacity, not_noted;

static size_t home_of(const lm_storage *s, size_t positions) {
  return lm_hash_number(LM_NO_HASH, (uintptr_t)s) & (positions - 1);
}

static noted *find_noted(noted *in, size_t positions, const lm_storage *s) {
  size_t at = home_of(s, positions);
  while (in[at].storage && in[at].storage != s) at = (at + 1) & (positions - 1);
  return &in[at];
}

static bool reserve_noted(void) {
  if (2 * (taken + 1) <= capacity) return true;
  size_t more = capacity ? 2 * capacity : 1024;
  noted *larger = lm_calloc(more, sizeof *larger);
  if (!larger) return false;
  for (size_t i = 0; i < capacity; i++)
    if (table[i].storage) *find_noted(larger, more, table[i].storage) = table[i];
  lm_free(table);
  table = larger;
  capacity = more;
  return true;
}

/* Removes an entry, and moves back later entries that it had displaced. */
static void take_out(noted *gone) {
  size_t hole = (size_t)(gone - table), mask = capacity - 1;
  for (size_t at = (hole + 1) & mask; table[at].storage; at = (at + 1) & mask) {
    size_t home = home_of(table[at].storage, capacity);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table[hole] = table[at];
    hole = at;
  }
  table[hole].storage = NULL;
  taken--;
}

/* True for memory from an allocator: small CPU tensors are in the storage's small[]. */
static bool is_allocated(const lm_storage *s) { return s->data != s->small && s->bytes > 0; }

void lm_memory_allocated(const lm_storage *s) {
  if (is_allocated(s)) lm_span_allocated((int64_t)s->bytes);
  if (!lm_traces(LM_TRACE_LIVE_MEMORY)) return;
  lm_live_memory is = {lm_script_line(), lm_span_name(), s->device, s->bytes, lm_seconds()};
  LM_LOCKED(&lock);
  if (!reserve_noted()) {
    not_noted++;
  } else {
    noted *it = find_noted(table, capacity, s);
    taken += it->storage == NULL;
    *it = (noted){s, is};
  }
}

void lm_memory_freed(const lm_storage *s) {
  if (s->foreign_release) return;
  if (is_allocated(s)) lm_span_allocated(-(int64_t)s->bytes);
  if (!lm_traces(LM_TRACE_LIVE_MEMORY)) return;
  LM_LOCKED(&lock);
  noted *it = capacity ? find_noted(table, capacity, s) : NULL;
  if (it && it->storage) take_out(it);
}

void lm_memory_history_set(bool on) {
  LM_LOCKED(&lock);
  lm_free(table);
  table = NULL;
  taken = capacity = not_noted = 0;
  if (on) {
    atomic_fetch_or(&lm_tracing, LM_TRACE_LIVE_MEMORY);
  } else {
    atomic_fetch_and(&lm_tracing, ~(uint32_t)LM_TRACE_LIVE_MEMORY);
  }
}

bool lm_memory_history_on(void) { return lm_traces(LM_TRACE_LIVE_MEMORY); }

lm_status lm_memory_history(size_t *n, lm_live_memory **out, size_t *missed) {
  pthread_mutex_lock(&lock);
  lm_live_memory *list = lm_malloc(taken * sizeof *list);
  *n = 0;
  for (size_t i = 0; list && i < capacity; i++)
    if (table[i].storage) list[(*n)++] = table[i].is;
  *missed = not_noted;
  pthread_mutex_unlock(&lock);
  *out = list;
  return list ? LM_OK : LM_E_OOM;
}
