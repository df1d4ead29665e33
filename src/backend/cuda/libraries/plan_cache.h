/* Maps keys of fixed size to plans and heuristics. Entries are never removed, since kernels in flight and captured
 * graphs may need them. The caller locks. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"

enum { LM_CACHE_BUCKETS = 256 };

/* Fails to compile if a key, which is compared byte by byte, has padding: initializers leave that undefined. Fields of
 * 8 bytes come first, `last` last; `unused`, of 4 bytes, makes an odd number of those even. */
#define LM_KEY_WITHOUT_PADDING(type, last)                                            \
  _Static_assert(sizeof(type) == offsetof(type, last) + sizeof(((type *)NULL)->last), \
                 #type " ends with padding, which is hashed")

/* The head of an entry; its key, all bytes of which count, follows directly. */
typedef struct lm_cached {
  struct lm_cached *next;
  uint64_t hash;
} lm_cached;

typedef struct lm_cache {
  lm_cached *bucket[LM_CACHE_BUCKETS];
} lm_cache;

/* Returns the key's entry, or NULL. */
static inline void *lm_cache_find(const lm_cache *cache, const void *key, size_t bytes) {
  uint64_t hash = lm_hash(LM_NO_HASH, key, bytes);
  lm_cached *e = cache->bucket[hash % LM_CACHE_BUCKETS];
  while (e && (e->hash != hash || memcmp(e + 1, key, bytes) != 0)) e = e->next;
  return e;
}

/* Adds an entry, whose key is already in place. */
static inline void lm_cache_put(lm_cache *cache, lm_cached *entry, size_t key_bytes) {
  entry->hash = lm_hash(LM_NO_HASH, entry + 1, key_bytes);
  lm_cached **bucket = &cache->bucket[entry->hash % LM_CACHE_BUCKETS];
  entry->next = *bucket;
  *bucket = entry;
}
