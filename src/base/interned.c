#include "base/interned.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"

LM_MUTEX(lock);
static char **table; /* open addressing; at most half of the slots are taken */
static size_t taken, capacity;

static char **find_interned(char **in, size_t positions, const char *text, size_t n) {
  size_t at = lm_hash(LM_NO_HASH, text, n);
  while (in[at & (positions - 1)] && strcmp(in[at & (positions - 1)], text) != 0) at++;
  return &in[at & (positions - 1)];
}

static bool reserve_interned(void) {
  if (2 * (taken + 1) <= capacity) return true;
  size_t more = capacity ? 2 * capacity : 256;
  char **larger = lm_alloc_must_fail() ? NULL : calloc(more, sizeof *larger);
  if (!larger) return false;
  for (size_t i = 0; i < capacity; i++)
    if (table[i]) *find_interned(larger, more, table[i], strlen(table[i])) = table[i];
  free(table);
  table = larger;
  capacity = more;
  return true;
}

const char *lm_interned(const char *text) {
  size_t n = strlen(text);
  char **found = NULL;
  LM_LOCKED(&lock);
  if (reserve_interned()) {
    found = find_interned(table, capacity, text, n);
    if (!*found && !lm_alloc_must_fail() && (*found = malloc(n + 1))) {
      memcpy(*found, text, n + 1);
      taken++;
    }
  }
  return found ? *found : NULL;
}

static _Thread_local const char *script_line;

const char *lm_script_line(void) { return script_line; }
void lm_set_script_line(const char *line) { script_line = line; }
