/* Tokenizes by byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
 * 2016): starts from a word's characters and merges the pair of the lowest rank, leftmost first, while there is one. */
#include <string.h>

#include "base/mem.h"
#include "text/model.h"

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static uint64_t hash_of(uint64_t pair) { return lm_hash_number(LM_NO_HASH, pair); }

static lm_merge *slot_of(const lm_model *m, uint64_t pair) {
  size_t mask = m->merge_slots - 1, i = hash_of(pair) & mask;
  while (m->merge[i].pair != pair && m->merge[i].pair != UINT64_MAX) i = (i + 1) & mask;
  return &m->merge[i];
}

lm_status lm_bpe_merges(lm_model *m, size_t n) {
  size_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  m->merge = lm_malloc(slots * sizeof *m->merge);
  if (!m->merge) return LM_E_OOM;
  m->merge_slots = slots;
  memset(m->merge, 0xff, slots * sizeof *m->merge);
  return LM_OK;
}

static lm_status add_merge(lm_model *m, int32_t left, int32_t right, int32_t rank, int32_t id) {
  uint64_t pair = pair_of(left, right);
  lm_merge *slot = slot_of(m, pair);
  if (lm_is_crowded((size_t)(slot - m->merge), hash_of(pair), m->merge_slots)) {
    return lm_fail(LM_E_ARG, "merge %d has the same hash as a thousand others", rank + 1);
  }
  *slot = (lm_merge){pair, rank, id};
  return LM_OK;
}

lm_status lm_bpe_add_pair(lm_model *m, lm_word_part left, lm_word_part right, int32_t rank, lm_bytes *joined) {
  joined->n = 0;
  lm_put(joined, left.text, left.n);
  if (right.n > m->prefix.n) lm_put(joined, right.text + m->prefix.n, right.n - m->prefix.n);
  if (joined->failed) return LM_E_OOM;
  lm_word_part all = {joined->n ? joined->data : "", joined->n};
  int32_t a = lm_vocabulary_find(&m->words, left.text, left.n);
  int32_t b = lm_vocabulary_find(&m->words, right.text, right.n);
  int32_t id = all.n && right.n >= m->prefix.n ? lm_vocabulary_find(&m->words, all.text, all.n) : -1;
  if (a < 0 || b < 0 || id < 0) {
    char text[80];
    lm_word_part lost = a < 0 ? left : b < 0 ? right : all;
    lm_write_bytes(text, sizeof text, lost.text, lost.n);
    return lm_fail(LM_E_IO, "merge %d: '%s' is not in the vocabulary", rank + 1, lm_ellipsize(text, 80));
  }
  return add_merge(m, a, b, rank, id);
}

static const lm_merge *find_merge(const lm_model *m, int32_t left, int32_t right) {
  const lm_merge *found = slot_of(m, pair_of(left, right));
  return found->pair == UINT64_MAX ? NULL : found;
}

/* ---- the word's symbols */
typedef struct word {
  lm_model *m;
  size_t n, heap;
} word;

static bool add_symbol(word *w, int32_t id, size_t bytes) {
  lm_model *m = w->m;
  if (w->n >= INT32_MAX || !lm_list_grow(&m->symbol, &m->symbol_capacity, w->n + 1, sizeof *m->symbol)) return false;
  m->symbol[w->n] = (lm_symbol){id, (int32_t)w->n - 1, (int32_t)w->n + 1, (uint32_t)bytes};
  w->n++;
  return true;
}

/* Returns the id of a character with the model's prefix (unless first) and suffix (if last), or -1. */
static int32_t find_char(const lm_model *m, const char *text, size_t n, bool first, bool last) {
  const lm_string *prefix = first ? NULL : &m->prefix, *suffix = last ? &m->suffix : NULL;
  if ((!prefix || prefix->n == 0) && (!suffix || suffix->n == 0)) {
    uint32_t c;
    if (n > 2) return lm_vocabulary_find(&m->words, text, n);
    lm_char_at(text, &c);
    return m->small_id[c];
  }
  char both[256];
  size_t prefix_n = prefix ? prefix->n : 0, suffix_n = suffix ? suffix->n : 0;
  if (prefix_n + n + suffix_n > sizeof both) return -1; /* the reader of files limits them */
  if (prefix_n) memcpy(both, prefix->data, prefix_n);
  memcpy(both + prefix_n, text, n);
  if (suffix_n) memcpy(both + prefix_n + n, suffix->data, suffix_n);
  return lm_vocabulary_find(&m->words, both, prefix_n + n + suffix_n);
}

/* Adds a token per byte if all bytes of prefix, character and suffix have one (*added); false: out of memory. */
static bool add_bytes(word *w, const lm_string *prefix, const char *text, size_t n, const lm_string *suffix,
                      bool *added) {
  const lm_string parts[3] = {*prefix, {(char *)text, n}, *suffix};
  for (int pass = 0; pass < 2; pass++) {
    for (int k = 0; k < 3; k++) {
      for (size_t i = 0; i < parts[k].n; i++) {
        int32_t id = w->m->byte_id[(unsigned char)parts[k].data[i]];
        if (id < 0) return (void)(*added = false), true;
        if (pass == 1 && !add_symbol(w, id, 1)) return false;
      }
    }
  }
  *added = true;
  return true;
}

static lm_status split_characters(word *w, const char *text, size_t n) {
  static const lm_string none = {0};
  lm_model *m = w->m;
  size_t unknown = 0; /* pending bytes of one unknown token */
  for (size_t i = 0; i < n;) {
    size_t size = (size_t)lm_char_size(text[i]), at = i;
    bool added = false;
    i += size;
    int32_t id = find_char(m, text + at, size, at == 0, i == n);
    if (id >= 0) {
      if (unknown && !add_symbol(w, m->unknown, unknown)) return LM_E_OOM;
      unknown = 0;
      if (!add_symbol(w, id, size)) return LM_E_OOM;
      continue;
    }
    if (m->byte_fallback &&
        !add_bytes(w, at ? &m->prefix : &none, text + at, size, i == n ? &m->suffix : &none, &added)) {
      return LM_E_OOM;
    }
    if (added || !m->unknown_text.data) continue; /* dropped without an unknown token */
    if (m->unknown < 0) return lm_model_fail_no_unknown(m, text + at, size);
    if (unknown && !m->fuse_unknown) {
      if (!add_symbol(w, m->unknown, unknown)) return LM_E_OOM;
      unknown = 0;
    }
    unknown += size;
  }
  return unknown && !add_symbol(w, m->unknown, unknown) ? LM_E_OOM : LM_OK;
}

/* ---- the heap of possible merges */
static bool merges_before(const lm_candidate *a, const lm_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static bool push_candidate(word *w, int32_t left, int32_t right) {
  lm_model *m = w->m;
  const lm_merge *merge = find_merge(m, m->symbol[left].id, m->symbol[right].id);
  if (!merge) return true;
  if (!lm_list_grow(&m->heap, &m->heap_capacity, w->heap + 1, sizeof *m->heap)) return false;
  lm_candidate candidate = {merge->rank, left, merge->id};
  size_t i = w->heap++;
  for (; i > 0 && merges_before(&candidate, &m->heap[(i - 1) / 2]); i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
  m->heap[i] = candidate;
  return true;
}

static lm_candidate pop_candidate(word *w) {
  lm_candidate *heap = w->m->heap, top = heap[0], last = heap[--w->heap];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < w->heap; i = child) {
    if (child + 1 < w->heap && merges_before(&heap[child + 1], &heap[child])) child++;
    if (!merges_before(&heap[child], &last)) break;
    heap[i] = heap[child];
  }
  heap[i] = last;
  return top;
}

static lm_status merge_symbols(word *w) {
  lm_model *m = w->m;
  lm_symbol *s = m->symbol;
  int32_t end = (int32_t)w->n;
  for (int32_t i = 0; i + 1 < end; i++) {
    if (!push_candidate(w, i, i + 1)) return LM_E_OOM;
  }
  while (w->heap > 0) {
    lm_candidate c = pop_candidate(w);
    int32_t right = s[c.at].after;
    if (s[c.at].n == 0 || right >= end) continue;
    const lm_merge *merge = find_merge(m, s[c.at].id, s[right].id);
    if (!merge || merge->id != c.id) continue; /* outdated: one of the two was merged */
    s[c.at].id = c.id;
    s[c.at].n += s[right].n;
    s[c.at].after = s[right].after;
    s[right].n = 0;
    if (s[right].after < end) s[s[right].after].before = c.at;
    if (s[c.at].before >= 0 && !push_candidate(w, s[c.at].before, c.at)) return LM_E_OOM;
    if (s[c.at].after < end && !push_candidate(w, c.at, s[c.at].after)) return LM_E_OOM;
  }
  return LM_OK;
}

lm_status lm_bpe_tokenize(lm_model *m, const char *text, size_t n, lm_model_tokens *out) {
  word w = {m, 0, 0};
  int32_t whole = m->ignore_merges ? lm_vocabulary_find(&m->words, text, n) : -1;
  if (whole >= 0) return lm_model_put(out, whole, 0, n);
  lm_status status = split_characters(&w, text, n);
  if (status == LM_OK) status = merge_symbols(&w);
  size_t at = 0;
  for (size_t i = 0; i < w.n && status == LM_OK; i++) {
    size_t bytes = m->symbol[i].n;
    if (bytes == 0) continue;
    status = lm_model_put(out, m->symbol[i].id, at, at + bytes);
    at += bytes;
  }
  return status;
}
