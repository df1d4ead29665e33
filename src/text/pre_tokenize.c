#include <string.h>

#include "text/step.h"

/* Cuts around each character for which the lm_char_test at `with` is true: the matches of the pre-tokenizer. */
static lm_status cut_at(const void *with, lm_pieces *p, const char *text, size_t n) {
  lm_char_test test = *(const lm_char_test *)with;
  size_t from = 0;
  for (size_t i = 0; i < n;) {
    uint32_t c;
    size_t size = (size_t)lm_char_at(text + i, &c);
    if (test(c)) {
      if (from < i) lm_cut_put(p, from, i, 0);
      lm_cut_put(p, i, i + size, 1);
      from = i + size;
    }
    i += size;
  }
  if (from < n) lm_cut_put(p, from, n, 0);
  return LM_OK;
}

static const lm_char_test spaces = lm_char_is_space, punctuation = lm_char_is_punctuation, digits = lm_char_is_numeric;

/* Cuts by \w+|[^\w\s]+, where spaces are the matches. */
static lm_status cut_words(const void *step, lm_pieces *p, const char *text, size_t n) {
  int before = 0; /* 0: spaces, 1: a word, 2: other characters */
  size_t from = 0;
  (void)step;
  for (size_t i = 0; i < n;) {
    uint32_t c;
    size_t size = (size_t)lm_char_at(text + i, &c);
    int is = lm_char_is_word(c) ? 1 : lm_char_is_space(c) ? 0 : 2;
    if (is != before) {
      if (from < i) lm_cut_put(p, from, i, before == 0);
      from = i;
      before = is;
    }
    i += size;
  }
  if (from < n) lm_cut_put(p, from, n, before == 0);
  return LM_OK;
}

static lm_status cut_pattern(const void *step, lm_pieces *p, const char *text, size_t n) {
  const lm_step *s = step;
  size_t at = LM_PATTERN_START, from, to, end = 0;
  for (bool found = true; !p->failed;) {
    NEED(lm_pattern_next(s->pattern, text, n, &p->work, &at, &found, &from, &to));
    if (!found) break;
    if (end != from) lm_cut_put(p, end, from, 0);
    lm_cut_put(p, from, to, 1);
    end = to;
  }
  if (end != n) lm_cut_put(p, end, n, 0);
  return LM_OK;
}

static lm_status cut_lengths(const void *step, lm_pieces *p, const char *text, size_t n) {
  const lm_step *s = step;
  for (size_t from = 0, i = 0; i < n; from = i) {
    for (int32_t k = 0; k < s->first && i < n; k++) i += (size_t)lm_char_size(text[i]);
    lm_cut_put(p, from, i, 0);
  }
  return LM_OK;
}

static lm_status prefix_space(const void *step, lm_rewrite *r) {
  (void)step;
  if (r->text[0] != ' ') lm_rewrite_prepend(r, " ", 1);
  lm_rewrite_keep(r, r->n);
  return LM_OK;
}

static lm_status metaspace(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  bool first = r->text[0] == ' ' || (r->n >= s->text.n && memcmp(r->text, s->text.data, s->text.n) == 0);
  if (!first && s->prepend != LM_PREPEND_NEVER && (s->prepend == LM_PREPEND_ALWAYS || r->shift == 0)) {
    lm_rewrite_prepend(r, s->text.data, s->text.n);
  }
  while (r->at < r->n) {
    const char *space = memchr(r->text + r->at, ' ', r->n - r->at);
    lm_rewrite_keep(r, (size_t)(space ? space - r->text : (ptrdiff_t)r->n) - r->at);
    if (space) lm_rewrite_replace(r, 1, s->text.data, s->text.n);
  }
  return LM_OK;
}

lm_status lm_pre_tokenize(const lm_step *s, lm_pieces *p) {
  switch (s->kind) {
    case LM_PRE_BERT:
      NEED(lm_pieces_cut(p, cut_at, &spaces, LM_CUT_REMOVED, false));
      return lm_pieces_cut(p, cut_at, &punctuation, LM_CUT_ISOLATED, false);
    case LM_PRE_BYTE_LEVEL: /* on[0 .. 2]: prefix space, trim offsets, cut by the pattern */
      if (s->on[0]) NEED(lm_pieces_rewrite(p, prefix_space, s));
      if (s->on[2]) NEED(lm_pieces_cut(p, cut_pattern, s, LM_CUT_ISOLATED, false));
      return lm_pieces_rewrite(p, lm_bytes_as_characters, s);
    case LM_PRE_DELIMITER: return lm_pieces_cut(p, cut_pattern, s, LM_CUT_REMOVED, false);
    case LM_PRE_METASPACE: /* on[0]: cut at the metaspaces */
      NEED(lm_pieces_rewrite(p, metaspace, s));
      return s->on[0] ? lm_pieces_cut(p, cut_pattern, s, LM_CUT_WITH_NEXT, false) : LM_OK;
    case LM_PRE_WHITESPACE: return lm_pieces_cut(p, cut_words, s, LM_CUT_REMOVED, false);
    case LM_PRE_WHITESPACE_SPLIT: return lm_pieces_cut(p, cut_at, &spaces, LM_CUT_REMOVED, false);
    case LM_PRE_PUNCTUATION: return lm_pieces_cut(p, cut_at, &punctuation, s->behavior, false);
    case LM_PRE_SPLIT: return lm_pieces_cut(p, cut_pattern, s, s->behavior, s->on[0]);
    case LM_PRE_DIGITS: return lm_pieces_cut(p, cut_at, &digits, s->on[0] ? LM_CUT_ISOLATED : LM_CUT_CONTIGUOUS, false);
    case LM_PRE_FIXED_LENGTH: return lm_pieces_cut(p, cut_lengths, s, LM_CUT_ISOLATED, false);
    default: return LM_OK;
  }
}
