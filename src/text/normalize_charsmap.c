/* Applies SentencePiece's precompiled_charsmap: a double array (Darts) of texts, whose values are byte positions in a
 * list of NUL-terminated replacements. As in `tokenizers`, a grapheme cluster under 6 bytes, else each of its
 * characters, becomes the replacement of the shortest text of the map that it begins with. */
#include <sodium.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/step.h"

/* Returns the position in s->text of the replacement for a prefix of text, or -1. */
static int64_t find_replacement(const lm_step *s, const char *text, size_t n) {
  size_t at = 0;
  for (size_t i = 0; i <= n; i++) {
    uint32_t unit = s->units[at];
    if (i > 0) {
      if ((unit & 0x800000ffu) != (unsigned char)text[i - 1]) return -1;
    }
    size_t child = at ^ ((unit >> 10) << ((unit & 0x200u) >> 6));
    if (i > 0 && unit >> 8 & 1) {
      if (child >= s->nunits) return -1;
      size_t value = s->units[child] & 0x7fffffffu;
      return value <= s->text.n && (s->text.data[value] & 0xc0) != 0x80 ? (int64_t)value : -1;
    }
    if (i == n || text[i] == 0) return -1;
    at = child ^ (unsigned char)text[i];
    if (at >= s->nunits) return -1;
  }
  return -1;
}

static size_t count_characters(const char *s, size_t n) {
  size_t characters = 0;
  for (size_t i = 0; i < n; i += (size_t)lm_char_size(s[i])) characters++;
  return characters;
}

/* Holds back the last character, as a later deletion counts as removed after it. */
typedef struct waiting {
  lm_rewrite *r;
  bool is;
  uint32_t c;
  int change;
} waiting;

static void put_after_waiting(waiting *w, uint32_t c, int change) {
  if (w->is) lm_rewrite_put(w->r, w->c, w->change);
  *w = (waiting){w->r, true, c, change};
}

static bool replace_text(const lm_step *s, waiting *w, const char *old, size_t n) {
  int64_t at = find_replacement(s, old, n);
  if (at < 0) return false;
  const char *replacement = s->text.data + at;
  size_t replacement_n = strlen(replacement); /* s->text is NUL-terminated */
  int was = (int)count_characters(old, n), is = (int)count_characters(replacement, replacement_n), k = 0;
  for (size_t i = 0; i < replacement_n; k++) {
    uint32_t c;
    i += (size_t)lm_char_at(replacement + i, &c);
    put_after_waiting(w, c, k >= was);
  }
  if (is < was) w->change += is - was;
  return true;
}

static size_t cluster_end(const lm_rewrite *r, size_t i) {
  uint32_t c, next;
  utf8proc_int32_t state = 0;
  i += (size_t)lm_char_at(r->text + i, &c);
  for (; i < r->n; c = next) {
    int more = lm_char_at(r->text + i, &next);
    if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) break;
    i += (size_t)more;
  }
  return i;
}

lm_status lm_normalize_charsmap(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  waiting w = {r, false, 0, 0};
  for (size_t i = 0; i < r->n && !r->pieces->failed;) {
    size_t end = cluster_end(r, i);
    if (end - i < 6 && replace_text(s, &w, r->text + i, end - i)) i = end;
    while (i < end && !r->pieces->failed) {
      uint32_t c;
      size_t size = (size_t)lm_char_at(r->text + i, &c);
      if (!replace_text(s, &w, r->text + i, size)) put_after_waiting(&w, c, 0);
      i += size;
    }
  }
  if (w.is) lm_rewrite_put(r, w.c, w.change);
  return LM_OK;
}

/* Reads the map: the array's size in bytes (uint32), the array, the replacement texts. */
lm_status lm_step_set_charsmap(lm_step *s, const char *base64, size_t n) {
  lm_status status = LM_OK;
  uint32_t size = 0;
  size_t length = 0;
  if (n == 0) return (void)(s->kind = LM_STEP_NONE), LM_OK;
  unsigned char *bytes = lm_malloc(n);
  if (!bytes) return LM_E_OOM;
  bool ok =
      sodium_base642bin(bytes, n, base64, n, NULL, &length, NULL, sodium_base64_VARIANT_ORIGINAL) == 0 && length >= 4;
  if (ok) memcpy(&size, bytes, 4); /* little-endian, as are all supported machines */
  ok = ok && size >= 4 && size % 4 == 0 && size <= length - 4;
  const char *texts = (const char *)bytes + 4 + size;
  if (!ok || lm_utf8_check(texts, length - 4 - size) < length - 4 - size) {
    TRY(lm_fail(LM_E_IO, "precompiled_charsmap must be base64 of a trie and its texts"));
  }
  s->nunits = size / 4;
  s->units = lm_malloc(size);
  if (!s->units) TRY(LM_E_OOM);
  memcpy(s->units, bytes + 4, size);
  TRY(lm_text_copy(&s->text, texts, length - 4 - size));
done:
  lm_free(bytes);
  return status;
}
