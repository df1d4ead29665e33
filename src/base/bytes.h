/* Encodes and decodes messages: a growing byte buffer, and a reader that never runs past the end. Numbers are
 * little-endian; a string is its length as uint32 and its bytes. The buffer records the first failed allocation and the
 * reader the first short or bad field, so callers write or read all fields and check `failed` once at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct lm_bytes { /* {0} is an empty buffer */
  char *data;
  size_t n, capacity;
  bool failed; /* true once out of memory; later writes are dropped */
} lm_bytes;

LM_API void lm_bytes_free(lm_bytes *b); /* frees the memory and leaves *b empty */
/* Declares a buffer that is freed when the block ends: LM_OWNED_BYTES text = {0}. No goto may jump over the
 * declaration. */
#define LM_OWNED_BYTES __attribute__((cleanup(lm_bytes_free))) lm_bytes
LM_API void lm_put(lm_bytes *b, const void *data, size_t n);
LM_API void lm_put_u8(lm_bytes *b, uint8_t v);
LM_API void lm_put_u32(lm_bytes *b, uint32_t v);
LM_API void lm_put_u64(lm_bytes *b, uint64_t v);
LM_API void lm_put_string(lm_bytes *b, const char *s, size_t n);
LM_API void lm_put_text(lm_bytes *b, const char *s); /* NULL is written as "" */
/* Removes the first n bytes. */
void lm_bytes_shift(lm_bytes *b, size_t n);

/* Returns the hash of a number, or of n bytes, combined with `hash` (LM_NO_HASH to start). Its low bits are well
 * mixed. */
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
  bool failed; /* true once a read ran past the end; every later read returns 0 or "" */
} lm_reader;

static inline lm_reader lm_reader_of(const void *data, size_t n) {
  return (lm_reader){(const char *)data, (const char *)data + n, false};
}
LM_API bool lm_get(lm_reader *r, void *out, size_t n); /* false, with out zeroed, on failure */
LM_API uint8_t lm_get_u8(lm_reader *r);
LM_API uint32_t lm_get_u32(lm_reader *r);
LM_API uint64_t lm_get_u64(lm_reader *r);
/* Returns a borrowed pointer to n bytes without a closing zero; NULL and *n = 0 on failure. */
LM_API const char *lm_get_string(lm_reader *r, size_t *n);
/* Copies a string and a closing zero to out, control characters as '?'; more than capacity - 1 bytes are a failure. */
LM_API void lm_get_text(lm_reader *r, char *out, size_t capacity);
/* Returns true if no read failed and no bytes are left. */
static inline bool lm_reader_done(const lm_reader *r) { return !r->failed && r->at == r->end; }
