/* Reads and writes UTF-8, and classifies characters as tokenizers do, by utf8proc's tables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Returns how many bytes (at least 1) one U+FFFD replaces at the start of invalid UTF-8: the bytes that could begin a
 * character. */
size_t lm_char_broken(const char *s, size_t n);
typedef struct lm_string {
  char *data; /* NUL-terminated; freed by lm_free */
  size_t n;
} lm_string;

LM_API lm_status lm_text_copy(lm_string *to, const char *text, size_t n);

/* Returns the index of the first byte of s that is not valid UTF-8; n if all is valid. */
LM_API size_t lm_utf8_check(const char *s, size_t n);

/* Reads the character at s, which lm_utf8_check accepted, into *c; returns its size in bytes. */
static inline int lm_char_at(const char *s, uint32_t *c) {
  const unsigned char *u = (const unsigned char *)s;
  if (u[0] < 0x80) return (void)(*c = u[0]), 1;
  if (u[0] < 0xe0) return (void)(*c = (u[0] & 31u) << 6 | (u[1] & 63u)), 2;
  if (u[0] < 0xf0) return (void)(*c = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u)), 3;
  *c = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
  return 4;
}
/* Reads the character that ends before s[end], end > 0, into *c; returns its index. */
static inline size_t lm_char_before(const char *s, size_t end, uint32_t *c) {
  do end--;
  while (end > 0 && (s[end] & 0xc0) == 0x80);
  lm_char_at(s + end, c);
  return end;
}
static inline int lm_char_size(char first) {
  unsigned char u = (unsigned char)first;
  return u < 0x80 ? 1 : u < 0xe0 ? 2 : u < 0xf0 ? 3 : 4;
}
/* Writes c as UTF-8 to out, at most 4 bytes, and returns the number of bytes. */
static inline int lm_char_put(char *out, uint32_t c) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 63));
  out[0] = (char)((0xf0 << (4 - n)) | c);
  return n;
}

typedef bool (*lm_char_test)(uint32_t c);
bool lm_char_is_space(uint32_t c);       /* White_Space */
bool lm_char_is_punctuation(uint32_t c); /* P*, and ASCII's symbols */
bool lm_char_is_numeric(uint32_t c);     /* N* */
bool lm_char_is_word(uint32_t c);        /* \w: alphabetic, marks, decimal digits, connectors, joiners */
bool lm_char_is_other(uint32_t c);       /* Cc, Cf, Co */
bool lm_char_is_mark(uint32_t c);        /* M* */
bool lm_char_is_nonspacing(uint32_t c);  /* Mn */
bool lm_char_is_cjk(uint32_t c);         /* an ideograph to Hugging Face's BertNormalizer */
/* Writes the lower case of c, one or two characters, to out; returns their number. */
int lm_char_lower(uint32_t c, uint32_t out[2]);

/* Returns the start of the spaces (lm_char_is_space) that end at `end`, at least `least`. */
size_t lm_spaces_before(const char *text, size_t least, size_t end);
/* Returns the end of the spaces that start at `at`. */
size_t lm_spaces_after(const char *text, size_t n, size_t at);

/* Returns GPT-2's character for a byte: printable bytes represent themselves, others map to U+0100 and up. */
uint32_t lm_char_of_byte(uint8_t byte);
int lm_byte_of_char(uint32_t c); /* the inverse; -1 if no byte maps to c */
#define LM_CHAR_BYTE_SPACE 0x120u
