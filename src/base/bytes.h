/* Bytes for messages: a buffer that grows, and a reader that never runs past the end.
 *
 * Numbers are little-endian; a string is its length as uint32 and its bytes. Writing remembers the
 * first failure (out of memory) and reading the first short or bad field, so a message is written or
 * read field after field and asked once, at the end, whether all went well. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct lm_bytes { /* {0} is an empty one */
  char *data;
  size_t n, capacity;
  bool failed; /* out of memory; what was to be added is not there */
} lm_bytes;

LM_API void lm_bytes_free(lm_bytes *b); /* leaves it empty */
LM_API void lm_put(lm_bytes *b, const void *data, size_t n);
LM_API void lm_put_u8(lm_bytes *b, uint8_t v);
LM_API void lm_put_u32(lm_bytes *b, uint32_t v);
LM_API void lm_put_u64(lm_bytes *b, uint64_t v);
LM_API void lm_put_string(lm_bytes *b, const char *s, size_t n);
LM_API void lm_put_text(lm_bytes *b, const char *s); /* NULL is "" */
/* Removes the first n bytes. */
LM_API void lm_bytes_shift(lm_bytes *b, size_t n);

/* The hash of a number, or of n bytes, behind what `hash` is of; LM_NO_HASH: of nothing. Its low bits are good ones. */
#define LM_NO_HASH 0x9e3779b97f4a7c15u
static inline uint64_t lm_hash_number(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9fb21c651e98df25u;
  return hash ^ hash >> 32;
}
static inline uint64_t lm_hash(uint64_t hash, const void *data, size_t n) {
  const unsigned char *p = data;
  uint64_t part, left = n;
  for (; left >= 8; p += 8, left -= 8) {
    memcpy(&part, p, 8);
    hash = lm_hash_number(hash, part);
  }
  part = 0;
  for (size_t i = 0; i < left; i++) part |= (uint64_t)p[i] << 8 * i;
  return lm_hash_number(lm_hash_number(hash, part), n);
}

typedef struct lm_reader {
  const char *at, *end;
  bool failed; /* something was missing; every later read returns 0 or "" */
} lm_reader;

static inline lm_reader lm_reader_of(const void *data, size_t n) {
  return (lm_reader){(const char *)data, (const char *)data + n, false};
}
LM_API bool lm_get(lm_reader *r, void *out, size_t n); /* zeroes out where it fails */
LM_API uint8_t lm_get_u8(lm_reader *r);
LM_API uint32_t lm_get_u32(lm_reader *r);
LM_API uint64_t lm_get_u64(lm_reader *r);
/* Borrowed, without a closing zero; NULL and *n = 0 where it fails. */
LM_API const char *lm_get_string(lm_reader *r, size_t *n);
/* A string of at most capacity - 1 bytes with a closing zero; control characters become '?'. Longer is a failure. */
LM_API void lm_get_text(lm_reader *r, char *out, size_t capacity);
/* All read, and nothing left over. */
static inline bool lm_reader_done(const lm_reader *r) { return !r->failed && r->at == r->end; }
