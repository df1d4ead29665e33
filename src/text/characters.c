#include "text/characters.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

#define BITS_OF(category) (1u << UTF8PROC_CATEGORY_##category)

/* Reads the character at s[0 .. n), n > 0, into *c and returns its size in bytes. Returns 0 for invalid UTF-8,
 * surrogates and characters beyond U+10FFFF included. */
static int read_char(const char *s, size_t n, uint32_t *c) {
  const unsigned char *u = (const unsigned char *)s;
  if (u[0] < 0x80) return (void)(*c = u[0]), 1;
  int size = u[0] >= 0xc2 && u[0] < 0xe0 ? 2 : u[0] >= 0xe0 && u[0] < 0xf0 ? 3 : u[0] >= 0xf0 && u[0] < 0xf5 ? 4 : 0;
  if (size == 0 || (size_t)size > n) return 0;
  for (int i = 1; i < size; i++) {
    if ((u[i] & 0xc0) != 0x80) return 0;
  }
  lm_char_at(s, c);
  bool fits = size == 2 || (size == 3 ? *c >= 0x800 && (*c < 0xd800 || *c > 0xdfff) : *c >= 0x10000 && *c <= 0x10ffff);
  return fits ? size : 0;
}

/* Measures Unicode's "maximal subpart" (chapter 3, table 3-8). */
size_t lm_char_broken(const char *s, size_t n) {
  const unsigned char *u = (const unsigned char *)s;
  int size = u[0] >= 0xc2 && u[0] < 0xe0 ? 2 : u[0] >= 0xe0 && u[0] < 0xf0 ? 3 : u[0] >= 0xf0 && u[0] < 0xf5 ? 4 : 1;
  unsigned low = u[0] == 0xe0   ? 0xa0
                 : u[0] == 0xf0 ? 0x90
                                : 0x80,
           high = u[0] == 0xed   ? 0x9f
                  : u[0] == 0xf4 ? 0x8f
                                 : 0xbf;
  size_t i = 1;
  for (; i < (size_t)size && i < n; i++) {
    if (u[i] < (i == 1 ? low : 0x80) || u[i] > (i == 1 ? high : 0xbf)) break;
  }
  return i;
}

lm_status lm_text_copy(lm_string *to, const char *text, size_t n) {
  char *copy = lm_malloc(n + 1);
  if (!copy) return LM_E_OOM;
  if (n) memcpy(copy, text, n);
  copy[n] = 0;
  lm_free(to->data);
  *to = (lm_string){copy, n};
  return LM_OK;
}

size_t lm_utf8_check(const char *s, size_t n) {
  uint32_t c;
  for (size_t i = 0; i < n;) {
    if (!(s[i] & 0x80)) {
      i++;
      continue;
    }
    int size = read_char(s + i, n - i, &c);
    if (size == 0) return i;
    i += (size_t)size;
  }
  return n;
}

bool lm_char_is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t lm_spaces_before(const char *text, size_t least, size_t end) {
  uint32_t c;
  for (size_t at = end; at > least; end = at) {
    at = lm_char_before(text, at, &c);
    if (!lm_char_is_space(c)) break;
  }
  return end;
}

size_t lm_spaces_after(const char *text, size_t n, size_t at) {
  uint32_t c;
  for (int size; at < n; at += (size_t)size) {
    size = lm_char_at(text + at, &c);
    if (!lm_char_is_space(c)) break;
  }
  return at;
}

static bool is_of(uint32_t c, unsigned categories) { return categories >> utf8proc_category((utf8proc_int32_t)c) & 1; }

bool lm_char_is_punctuation(uint32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7f && !((c | 32) >= 'a' && (c | 32) <= 'z') && !(c >= '0' && c <= '9');
  return is_of(c, BITS_OF(PC) | BITS_OF(PD) | BITS_OF(PS) | BITS_OF(PE) | BITS_OF(PI) | BITS_OF(PF) | BITS_OF(PO));
}

bool lm_char_is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_of(c, BITS_OF(ND) | BITS_OF(NL) | BITS_OF(NO));
}

/* Tests for Other_Alphabetic characters that are no marks: circled and squared letters. */
static bool is_enclosed_letter(uint32_t c) {
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
         (c >= 0x1f170 && c <= 0x1f189);
}

bool lm_char_is_word(uint32_t c) {
  if (c < 0x80) return ((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || c == '_';
  return is_of(c, BITS_OF(LU) | BITS_OF(LL) | BITS_OF(LT) | BITS_OF(LM) | BITS_OF(LO) | BITS_OF(MN) | BITS_OF(MC) |
                      BITS_OF(ME) | BITS_OF(ND) | BITS_OF(NL) | BITS_OF(PC)) ||
         c == 0x200c || c == 0x200d || is_enclosed_letter(c);
}

bool lm_char_is_other(uint32_t c) {
  if (c < 0x80) return c < ' ' || c == 0x7f;
  return is_of(c, BITS_OF(CC) | BITS_OF(CF) | BITS_OF(CO));
}

bool lm_char_is_mark(uint32_t c) { return c >= 0x300 && is_of(c, BITS_OF(MN) | BITS_OF(MC) | BITS_OF(ME)); }

bool lm_char_is_nonspacing(uint32_t c) { return c >= 0x300 && is_of(c, BITS_OF(MN)); }

bool lm_char_is_cjk(uint32_t c) {
  return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) ||
         (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0x2f800 && c <= 0x2fa1f);
}

int lm_char_lower(uint32_t c, uint32_t out[2]) {
  if (c == 0x130) { /* the only character whose lower case is two characters (SpecialCasing.txt) */
    out[0] = 'i';
    out[1] = 0x307;
    return 2;
  }
  out[0] = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
  return 1;
}

static bool is_printable_byte(unsigned b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); }

uint32_t lm_char_of_byte(uint8_t byte) {
  if (is_printable_byte(byte)) return byte;
  if (byte <= 0x20) return 0x100u + byte;
  return byte == 0xad ? 0x143u : 0x121u + (byte - 0x7fu);
}

int lm_byte_of_char(uint32_t c) {
  if (c < 0x100) return is_printable_byte(c) ? (int)c : -1;
  if (c <= 0x120) return (int)c - 0x100;
  return c < 0x143 ? (int)c - 0x121 + 0x7f : c == 0x143 ? 0xad : -1;
}
