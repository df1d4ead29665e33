#include "base/bytes.h"

#include <string.h>

#include "base/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "Luminary needs a little-endian machine: its files and messages are memory as it lies there");

void lm_bytes_free(lm_bytes *b) {
  lm_free(b->data);
  *b = (lm_bytes){0};
}

void lm_put(lm_bytes *b, const void *data, size_t n) {
  if (b->failed || n == 0) return;
  if (n > b->capacity - b->n) {
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity - b->n < n) capacity *= 2;
    char *grown = lm_realloc(b->data, capacity);
    if (!grown) {
      b->failed = true;
      return;
    }
    b->data = grown;
    b->capacity = capacity;
  }
  memcpy(b->data + b->n, data, n);
  b->n += n;
}

void lm_put_u8(lm_bytes *b, uint8_t v) { lm_put(b, &v, sizeof v); }
void lm_put_u32(lm_bytes *b, uint32_t v) { lm_put(b, &v, sizeof v); }
void lm_put_u64(lm_bytes *b, uint64_t v) { lm_put(b, &v, sizeof v); }

void lm_put_string(lm_bytes *b, const char *s, size_t n) {
  lm_put_u32(b, (uint32_t)n);
  lm_put(b, s, n);
}

void lm_put_text(lm_bytes *b, const char *s) { lm_put_string(b, s, s ? strlen(s) : 0); }

void lm_bytes_shift(lm_bytes *b, size_t n) {
  if (n == 0) return;
  if (n < b->n) memmove(b->data, b->data + n, b->n - n);
  b->n = n < b->n ? b->n - n : 0;
}

static const char *take_bytes(lm_reader *r, size_t n) {
  if (r->failed || (size_t)(r->end - r->at) < n) {
    r->failed = true;
    return NULL;
  }
  const char *at = r->at;
  r->at += n;
  return at;
}

bool lm_get(lm_reader *r, void *out, size_t n) {
  const char *at = take_bytes(r, n);
  if (at) {
    if (n > 0) memcpy(out, at, n);
  } else {
    memset(out, 0, n);
  }
  return at != NULL;
}

#define GET(name, type)              \
  type lm_get_##name(lm_reader *r) { \
    type v;                          \
    lm_get(r, &v, sizeof v);         \
    return v;                        \
  }
GET(u8, uint8_t)
GET(u32, uint32_t)
GET(u64, uint64_t)

const char *lm_get_string(lm_reader *r, size_t *n) {
  *n = lm_get_u32(r);
  const char *at = take_bytes(r, *n);
  if (!at) *n = 0;
  return at;
}

void lm_get_text(lm_reader *r, char *out, size_t capacity) {
  size_t n;
  const char *s = lm_get_string(r, &n);
  out[0] = 0;
  if (!s) return;
  if (n >= capacity) {
    r->failed = true;
    return;
  }
  for (size_t i = 0; i < n; i++) out[i] = (unsigned char)s[i] < 32 && s[i] != '\n' && s[i] != '\t' ? '?' : s[i];
  out[n] = 0;
}
