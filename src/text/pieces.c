#include "text/pieces.h"

#include <string.h>

static bool reserve_aligned(lm_pieces *p, lm_aligned *a, size_t n) {
  if (n <= a->capacity && n <= p->max_bytes) return true;
  size_t capacity = n + n / 2 + 64;
  p->too_long = n > p->max_bytes;
  char *text = p->too_long ? NULL : lm_realloc(a->text, capacity);
  if (text) a->text = text;
  lm_span *span = text ? lm_realloc(a->span, capacity * sizeof *span) : NULL;
  if (span) {
    a->span = span;
    a->capacity = capacity;
  }
  if (!span) p->failed = true;
  return span != NULL;
}

static lm_status fail_if_failed(const lm_pieces *p) {
  if (!p->failed) return LM_OK;
  if (p->too_long) return lm_fail(LM_E_ARG, "text must have at most %zu bytes after normalization", p->max_bytes);
  return lm_fail(LM_E_OOM, "out of memory: tokenizing a text");
}

lm_status lm_pieces_begin(lm_pieces *p, const char *text, size_t n) {
  p->failed = p->too_long = false;
  p->count = 0;
  p->work = lm_work_for(n);
  p->max_bytes = n < LM_TEXT_MAX / 64 ? 64 * n + (1 << 20) : LM_TEXT_MAX;
  if (n > LM_TEXT_MAX) return lm_fail(LM_E_ARG, "text must have at most %d bytes, got %zu", LM_TEXT_MAX, n);
  if (!reserve_aligned(p, &p->now, n) || !lm_list_grow(&p->piece, &p->piece_capacity, 1, sizeof *p->piece)) {
    p->failed = true;
    return fail_if_failed(p);
  }
  if (n) memcpy(p->now.text, text, n);
  p->now.n = n;
  for (size_t i = 0; i < n;) {
    size_t end = i + (size_t)lm_char_size(text[i]);
    for (size_t j = i; j < end; j++) p->now.span[j] = (lm_span){(uint32_t)i, (uint32_t)end};
    i = end;
  }
  p->piece[0] = (lm_piece){0, (uint32_t)n, 0, -1};
  p->count = n > 0;
  return LM_OK;
}

void lm_pieces_free(lm_pieces *p) {
  lm_aligned *both[] = {&p->now, &p->next};
  for (int i = 0; i < 2; i++) {
    lm_free(both[i]->text);
    lm_free(both[i]->span);
  }
  lm_free(p->piece);
  lm_free(p->next_piece);
  lm_free(p->cut);
  *p = (lm_pieces){0};
}

/* ---- rewriting */
static size_t next_char(const lm_rewrite *r, size_t at) { return at + (size_t)lm_char_size(r->text[at]); }

void lm_rewrite_skip(lm_rewrite *r, size_t characters) {
  while (characters-- > 0 && r->at < r->n) r->at = next_char(r, r->at);
}

static lm_span span_before(const lm_rewrite *r) { return r->at ? r->span[r->at - 1] : (lm_span){r->shift, r->shift}; }

static void put_text(lm_rewrite *r, const char *text, size_t n, lm_span span) {
  lm_aligned *to = &r->pieces->next;
  if (!reserve_aligned(r->pieces, to, to->n + n)) return;
  if (n) memcpy(to->text + to->n, text, n);
  for (size_t i = 0; i < n; i++) to->span[to->n + i] = span;
  to->n += n;
}

void lm_rewrite_put(lm_rewrite *r, uint32_t c, int change) {
  lm_span span = change > 0 || r->at >= r->n ? span_before(r) : r->span[r->at];
  if (change <= 0) lm_rewrite_skip(r, (size_t)(1 - change));
  char bytes[4];
  put_text(r, bytes, (size_t)lm_char_put(bytes, c), span);
}

void lm_rewrite_keep(lm_rewrite *r, size_t n) {
  lm_aligned *to = &r->pieces->next;
  size_t at = r->at;
  r->at += n; /* advanced even on failure, as callers loop until all is read */
  if (n == 0 || !reserve_aligned(r->pieces, to, to->n + n)) return;
  memcpy(to->text + to->n, r->text + at, n);
  memcpy(to->span + to->n, r->span + at, n * sizeof *to->span);
  to->n += n;
}

void lm_rewrite_replace(lm_rewrite *r, size_t n, const char *text, size_t text_n) {
  r->at += n;
  put_text(r, text, text_n, span_before(r));
}

void lm_rewrite_prepend(lm_rewrite *r, const char *text, size_t n) {
  if (r->n > 0 && n > 0) put_text(r, text, n, r->span[0]);
}

lm_status lm_pieces_rewrite(lm_pieces *p, lm_rewriter f, const void *with) {
  size_t kept = 0;
  p->next.n = 0;
  for (size_t i = 0; i < p->count && !p->failed; i++) {
    lm_piece piece = p->piece[i];
    lm_rewrite r = {p, p->now.text + piece.at, p->now.span + piece.at, piece.n, 0, piece.shift};
    piece.at = (uint32_t)p->next.n;
    if (piece.id >= 0) {
      lm_rewrite_keep(&r, r.n);
    } else {
      NEED(f(with, &r));
    }
    piece.n = (uint32_t)(p->next.n - piece.at);
    if (piece.n > 0) p->piece[kept++] = piece;
  }
  NEED(fail_if_failed(p));
  p->count = kept;
  lm_aligned was = p->now;
  p->now = p->next;
  p->next = was;
  return LM_OK;
}

/* ---- cutting */
void lm_cut_put(lm_pieces *p, size_t from, size_t to, int32_t id) {
  lm_cut cut = {(uint32_t)from, (uint32_t)to, id};
  if (!LM_APPEND(p->cut, p->cuts, p->cut_capacity, cut)) p->failed = true;
}

/* Joins or removes the n cuts in place as `behavior` says; returns how many remain. */
static size_t join_cuts(lm_cut *cut, size_t n, lm_behavior behavior) {
  size_t kept = 0;
  bool before = false;
  if (behavior == LM_CUT_REMOVED) {
    for (size_t i = 0; i < n; i++) {
      if (!cut[i].id) cut[kept++] = cut[i];
    }
    return kept;
  }
  if (behavior == LM_CUT_WITH_NEXT) { /* LM_CUT_WITH_PREVIOUS, run from the end */
    size_t first = n;
    for (size_t i = n; i-- > 0;) {
      bool found = cut[i].id != 0;
      if (found && !before && first < n) {
        cut[first].from = cut[i].from;
      } else {
        cut[--first] = cut[i];
      }
      before = found;
    }
    memmove(cut, cut + first, (n - first) * sizeof *cut);
    return n - first;
  }
  for (size_t i = 0; i < n; i++) {
    bool found = cut[i].id != 0;
    bool joins = behavior == LM_CUT_CONTIGUOUS ? found == before : behavior == LM_CUT_WITH_PREVIOUS && found && !before;
    if (joins && kept > 0) {
      cut[kept - 1].to = cut[i].to;
    } else {
      cut[kept++] = cut[i];
    }
    before = found;
  }
  return kept;
}

lm_status lm_pieces_cut(lm_pieces *p, lm_cutter f, const void *with, lm_behavior behavior, bool invert) {
  p->next_count = 0;
  for (size_t i = 0; i < p->count && !p->failed; i++) {
    lm_piece piece = p->piece[i];
    if (piece.id >= 0) {
      p->failed = !LM_APPEND(p->next_piece, p->next_count, p->next_capacity, piece);
      continue;
    }
    p->cuts = 0;
    NEED(f(with, p, p->now.text + piece.at, piece.n));
    if (p->failed) break;
    for (size_t k = 0; k < p->cuts && invert; k++) p->cut[k].id = !p->cut[k].id;
    size_t n = behavior == LM_CUT_IDS ? p->cuts : join_cuts(p->cut, p->cuts, behavior);
    for (size_t k = 0; k < n && !p->failed; k++) {
      lm_cut c = p->cut[k];
      if (c.from >= c.to) continue;
      uint32_t at = piece.at + c.from;
      lm_piece part = {at, c.to - c.from, p->now.span[at].from, behavior == LM_CUT_IDS ? c.id : -1};
      p->failed = !LM_APPEND(p->next_piece, p->next_count, p->next_capacity, part);
    }
  }
  NEED(fail_if_failed(p));
  lm_piece *was = p->piece;
  size_t capacity = p->piece_capacity;
  p->piece = p->next_piece;
  p->piece_capacity = p->next_capacity;
  p->count = p->next_count;
  p->next_piece = was;
  p->next_capacity = capacity;
  return LM_OK;
}
