#include <string.h>

#include "text/step.h"

/* ---- deletions: rewriters of characters for which the lm_char_test at `with` is true */

/* Drops these characters; the offsets of a remaining one also cover the dropped ones after it. */
static lm_status drop_characters(const void *with, lm_rewrite *r) {
  lm_char_test drops = *(const lm_char_test *)with;
  uint32_t last = 0, c;
  bool any = false;
  int dropped = 0;
  for (size_t i = 0; i < r->n;) {
    i += (size_t)lm_char_at(r->text + i, &c);
    if (drops(c)) {
      dropped++;
      continue;
    }
    if (any) {
      lm_rewrite_put(r, last, -dropped);
    } else {
      lm_rewrite_skip(r, (size_t)dropped);
    }
    last = c;
    any = true;
    dropped = 0;
  }
  if (any) lm_rewrite_put(r, last, -dropped);
  return LM_OK;
}

static bool is_unclean(uint32_t c) {
  return c != '\t' && c != '\n' && c != '\r' && (c == 0 || c == 0xfffd || lm_char_is_other(c));
}

/* Tests for the control characters that SentencePiece's nmt rules drop. */
static bool is_nmt_control(uint32_t c) {
  return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}

/* ---- mappings of characters */

/* Writes the characters that replace c to `to` and returns their number; 0 if c stays. */
typedef int (*char_map)(uint32_t c, uint32_t to[3]);

/* Replaces characters by the char_map at `with`. */
static lm_status replace_characters(const void *with, lm_rewrite *r) {
  char_map map = *(const char_map *)with;
  for (size_t i = 0; i < r->n;) {
    uint32_t c, to[3];
    size_t size = (size_t)lm_char_at(r->text + i, &c);
    int n = map(c, to);
    if (n == 0) lm_rewrite_keep(r, size);
    for (int k = 0; k < n; k++) lm_rewrite_put(r, to[k], k > 0);
    i += size;
  }
  return LM_OK;
}

static int map_spaces(uint32_t c, uint32_t to[3]) {
  to[0] = ' ';
  return lm_char_is_space(c);
}

static int map_nmt_spaces(uint32_t c, uint32_t to[3]) {
  to[0] = ' ';
  return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
         c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

static int map_ideographs(uint32_t c, uint32_t to[3]) {
  to[0] = to[2] = ' ';
  to[1] = c;
  return lm_char_is_cjk(c) ? 3 : 0;
}

static int map_lower(uint32_t c, uint32_t to[3]) {
  int n = lm_char_lower(c, to);
  return n == 1 && to[0] == c ? 0 : n;
}

lm_status lm_bytes_as_characters(const void *step, lm_rewrite *r) {
  (void)step;
  for (size_t i = 0; i < r->n;) {
    int size = lm_char_size(r->text[i]);
    for (int k = 0; k < size; k++) lm_rewrite_put(r, lm_char_of_byte((uint8_t)r->text[i + (size_t)k]), k > 0);
    i += (size_t)size;
  }
  return LM_OK;
}

/* ---- the rest */
/* Strips whitespace. on: at the beginning, at the end */
static lm_status strip_spaces(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  size_t from = s->on[0] ? lm_spaces_after(r->text, r->n, 0) : 0;
  size_t to = s->on[1] ? lm_spaces_before(r->text, from, r->n) : r->n;
  r->at = from;
  lm_rewrite_keep(r, to - from);
  return LM_OK;
}

static lm_status replace(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  size_t at = LM_PATTERN_START, from, to;
  for (bool found = true; !r->pieces->failed;) {
    NEED(lm_pattern_next(s->pattern, r->text, r->n, &r->pieces->work, &at, &found, &from, &to));
    if (!found) break;
    lm_rewrite_keep(r, from - r->at);
    lm_rewrite_replace(r, to - from, s->text.data, s->text.n);
  }
  lm_rewrite_keep(r, r->n - r->at);
  return LM_OK;
}

static lm_status prepend_text(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  lm_rewrite_prepend(r, s->text.data, s->text.n);
  lm_rewrite_keep(r, r->n);
  return LM_OK;
}

static bool all_below(const lm_pieces *p, unsigned char most) {
  for (size_t i = 0; i < p->now.n; i++) {
    if ((unsigned char)p->now.text[i] >= most) return false;
  }
  return true;
}

/* Applies BERT's normalizer. on: clean, space ideographs, strip accents, lowercase */
static lm_status normalize_bert(const lm_step *s, lm_pieces *p) {
  static const lm_step decompose = {.kind = LM_NORM_NFD};
  bool ascii = all_below(p, 0x80);
  if (s->on[0]) {
    NEED(lm_pieces_rewrite(p, drop_characters, &(const lm_char_test){is_unclean}));
    NEED(lm_pieces_rewrite(p, replace_characters, &(const char_map){map_spaces}));
  }
  if (s->on[1] && !ascii) NEED(lm_pieces_rewrite(p, replace_characters, &(const char_map){map_ideographs}));
  if (s->on[2] && !ascii) {
    NEED(lm_normalize(&decompose, p));
    NEED(lm_pieces_rewrite(p, drop_characters, &(const lm_char_test){lm_char_is_nonspacing}));
  }
  if (s->on[3]) NEED(lm_pieces_rewrite(p, replace_characters, &(const char_map){map_lower}));
  return LM_OK;
}

lm_status lm_normalize(const lm_step *s, lm_pieces *p) {
  switch (s->kind) {
    case LM_NORM_BERT: return normalize_bert(s, p);
    case LM_NORM_STRIP: return lm_pieces_rewrite(p, strip_spaces, s);
    case LM_NORM_STRIP_ACCENTS:
      return all_below(p, 0xcc) ? LM_OK : lm_pieces_rewrite(p, drop_characters, &(const lm_char_test){lm_char_is_mark});
    case LM_NORM_NFC: return all_below(p, 0xcc) ? LM_OK : lm_pieces_rewrite(p, lm_normalize_form, s);
    case LM_NORM_NFD:
    case LM_NORM_NFKC:
    case LM_NORM_NFKD: return all_below(p, 0x80) ? LM_OK : lm_pieces_rewrite(p, lm_normalize_form, s);
    case LM_NORM_LOWERCASE: return lm_pieces_rewrite(p, replace_characters, &(const char_map){map_lower});
    case LM_NORM_NMT:
      NEED(lm_pieces_rewrite(p, drop_characters, &(const lm_char_test){is_nmt_control}));
      return lm_pieces_rewrite(p, replace_characters, &(const char_map){map_nmt_spaces});
    case LM_NORM_CHARSMAP: return lm_pieces_rewrite(p, lm_normalize_charsmap, s);
    case LM_NORM_REPLACE: return lm_pieces_rewrite(p, replace, s);
    case LM_NORM_PREPEND: return lm_pieces_rewrite(p, prepend_text, s);
    case LM_NORM_BYTE_LEVEL: return lm_pieces_rewrite(p, lm_bytes_as_characters, s);
    default: return LM_OK;
  }
}
