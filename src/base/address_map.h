/* Maps addresses to numbers, by open addressing. */
#pragma once

#include "base/bytes.h"
#include "base/mem.h"

typedef struct lm_address_map { /* {0} is empty; lm_free(entry) frees it */
  size_t n, capacity;           /* capacity: a power of two, at least twice n */
  struct lm_address_entry {
    const void *address; /* NULL: free */
    int number;
  } * entry;
} lm_address_map;

static inline struct lm_address_entry *lm_address_entry(const lm_address_map *m, const void *address) {
  size_t at = lm_hash_number(LM_NO_HASH, (uintptr_t)address);
  while (m->entry[at & (m->capacity - 1)].address && m->entry[at & (m->capacity - 1)].address != address) at++;
  return &m->entry[at & (m->capacity - 1)];
}

/* Returns the number of an address; -1 if it has none. */
static inline int lm_address_find(const lm_address_map *m, const void *address) {
  const struct lm_address_entry *found = m->n > 0 ? lm_address_entry(m, address) : NULL;
  return found && found->address ? found->number : -1;
}

/* Sets the number of an address; false when out of memory. */
static inline bool lm_address_set(lm_address_map *m, const void *address, int number) {
  if (2 * (m->n + 1) > m->capacity) {
    lm_address_map more = {.n = m->n, .capacity = m->capacity > 0 ? 2 * m->capacity : 64};
    if (!(more.entry = lm_calloc(more.capacity, sizeof *more.entry))) return false;
    for (size_t i = 0; i < m->capacity; i++)
      if (m->entry[i].address) *lm_address_entry(&more, m->entry[i].address) = m->entry[i];
    lm_free(m->entry);
    *m = more;
  }
  struct lm_address_entry *entry = lm_address_entry(m, address);
  m->n += entry->address == NULL;
  *entry = (struct lm_address_entry){address, number};
  return true;
}
