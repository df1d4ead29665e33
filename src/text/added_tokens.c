/* Adds tokens beside the model's vocabulary, and cuts them out of a text before the model sees it. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"

void lm_added_free(lm_added_tokens *a) {
  for (size_t i = 0; i < a->n; i++) {
    lm_free(a->item[i].content.data);
    lm_free(a->item[i].normalized.data);
  }
  lm_free(a->item);
  lm_free(a->by_id);
  lm_vocabulary_free(&a->position);
  lm_trie_free(&a->raw);
  lm_trie_free(&a->normalized);
  *a = (lm_added_tokens){0};
}

/* ---- texts to search for */
static lm_status normalized_text(lm_tokenizer *t, lm_added_token *a, uint64_t *work) {
  lm_pieces p = {0};
  lm_status status;
  lm_free(a->normalized.data);
  a->normalized = (lm_string){0};
  if (!a->is_normalized || t->normalizers.n == 0) return LM_OK;
  TRY(lm_pieces_begin(&p, a->content.data, a->content.n));
  p.work = *work;
  p.max_bytes = 16 * a->content.n + 64; /* small, as there may be many tokens */
  for (size_t i = 0; i < t->normalizers.n; i++) TRY(lm_normalize(&t->normalizers.item[i], &p));
  size_t n = p.count ? p.now.n : 0;
  if (n == a->content.n && memcmp(p.now.text, a->content.data, n) == 0) goto done;
  TRY(lm_text_copy(&a->normalized, p.now.text, n));
done:
  *work = p.work;
  lm_pieces_free(&p);
  return status;
}

/* Builds the trie of the added tokens. Among equal normalized texts a special token wins, then the first added. */
static lm_status build_trie(const lm_added_tokens *a, bool normalized, lm_trie *trie) {
  lm_trie_free(trie);
  LM_FREED lm_trie_key *keys = lm_malloc(a->n * sizeof *keys);
  if (!keys) return LM_E_OOM;
  size_t n = 0;
  for (size_t i = 0; i < a->n; i++) {
    const lm_added_token *one = &a->item[i];
    const lm_string *text = one->normalized.data ? &one->normalized : &one->content;
    if (one->is_normalized == normalized)
      keys[n++] = (lm_trie_key){text->data, text->n, (int32_t)i, (int32_t)((one->special ? 2 : 1) * a->n - i)};
  }
  return n ? lm_trie_build(trie, keys, n) : LM_OK;
}

lm_status lm_added_close(lm_tokenizer *t) {
  lm_added_tokens *a = &t->added;
  int32_t ids = 0;
  uint64_t work = lm_work_for(a->position.bytes);
  for (size_t i = 0; i < a->n; i++) {
    if (a->item[i].id >= ids) ids = a->item[i].id + 1;
    NEED(normalized_text(t, &a->item[i], &work));
  }
  if ((size_t)ids > 4 * (a->n + t->model.words.count) + (1 << 16)) {
    NEED(lm_fail(LM_E_ARG, "the id of an added token must be near the number of tokens (%zu), got %d",
                 t->model.words.count, ids - 1));
  }
  lm_free(a->by_id);
  a->ids = 0;
  a->by_id = lm_malloc((size_t)ids * sizeof *a->by_id);
  if (!a->by_id) NEED(LM_E_OOM);
  a->ids = ids;
  memset(a->by_id, 0xff, (size_t)ids * sizeof *a->by_id);
  for (size_t i = 0; i < a->n; i++) a->by_id[a->item[i].id] = (int32_t)i;
  NEED(build_trie(a, false, &a->raw));
  return build_trie(a, true, &a->normalized);
}

const lm_added_token *lm_tokenizer_added(const lm_tokenizer *t, int32_t id) {
  const lm_added_tokens *a = &t->added;
  return id < 0 || id >= a->ids || a->by_id[id] < 0 ? NULL : &a->item[a->by_id[id]];
}

lm_status lm_tokenizer_add(lm_tokenizer *t, const char *text, size_t n, const lm_added_token *as, int32_t *id) {
  lm_added_tokens *a = &t->added;
  lm_added_token token = *as;
  int32_t position = lm_vocabulary_find(&a->position, text, n);
  if (a->next_id < (int32_t)t->model.words.count) a->next_id = (int32_t)t->model.words.count;
  token.normalized = token.content = (lm_string){0};
  token.id = *id = lm_tokenizer_id(t, text, n);
  if (position >= 0) {
    token.content = a->item[position].content;
    lm_free(a->item[position].normalized.data);
    a->item[position] = token;
    return LM_OK;
  }
  if (token.id < 0) token.id = *id = a->next_id;
  if (!lm_list_grow(&a->item, &a->capacity, a->n + 1, sizeof *a->item)) return LM_E_OOM;
  lm_status status = lm_vocabulary_add(&a->position, text, n, (int32_t)a->n);
  if (status == LM_OK) status = lm_text_copy(&token.content, text, n);
  if (status != LM_OK) return status;
  if (token.id >= a->next_id) a->next_id = token.id + 1;
  a->item[a->n++] = token;
  return LM_OK;
}

/* ---- searching */
static bool stands_alone(const char *text, size_t n, size_t from, size_t to) {
  uint32_t c;
  if (from > 0 && (lm_char_before(text, from, &c), lm_char_is_word(c))) return false;
  return to == n || (lm_char_at(text + to, &c), !lm_char_is_word(c));
}

/* Returns the index of the longest token that text begins with and its bytes in *length, or -1. */
static int32_t longest_token(const lm_trie *trie, const char *text, size_t n, size_t *length, uint64_t *work) {
  int32_t node = 0, found = -1;
  size_t i = 0;
  for (; i < n && (node = lm_trie_step(trie, node, text[i])) >= 0; i++) {
    if (trie->node[node].id < 0) continue;
    found = trie->node[node].id;
    *length = i + 1;
  }
  lm_work_take(work, i);
  return found;
}

typedef struct search {
  const lm_added_tokens *added;
  const lm_trie *trie;
} search;

static lm_status cut_added(const void *with, lm_pieces *p, const char *text, size_t n) {
  const search *s = with;
  size_t end = 0, spaces = 0; /* end of the last cut; end of the last spaces searched */
  for (size_t i = 0, length = 0; i < n; i += length) {
    int32_t found = longest_token(s->trie, text + i, n - i, &length, &p->work);
    if (p->work == 0) return lm_model_fail_too_long();
    if (found < 0) {
      length = 1;
      continue;
    }
    const lm_added_token *a = &s->added->item[found];
    size_t from = i, to = i + length;
    if (a->single_word && !stands_alone(text, n, from, to)) continue;
    if (a->lstrip) from = from > end ? lm_spaces_before(text, end, from) : end;
    if (a->rstrip && to >= spaces) spaces = lm_spaces_after(text, n, to);
    if (a->rstrip && to < spaces) to = spaces;
    if (end < from) lm_cut_put(p, end, from, -1);
    lm_cut_put(p, from, to, a->id);
    end = to;
  }
  if (end < n) lm_cut_put(p, end, n, -1);
  return LM_OK;
}

static lm_status cut_at_added(lm_tokenizer *t, const lm_trie *trie, lm_pieces *p) {
  search s = {&t->added, trie};
  return trie->n ? lm_pieces_cut(p, cut_added, &s, LM_CUT_IDS, false) : LM_OK;
}

lm_status lm_added_cut(lm_tokenizer *t, lm_pieces *p) {
  NEED(cut_at_added(t, &t->added.raw, p));
  for (size_t i = 0; i < t->normalizers.n; i++) NEED(lm_normalize(&t->normalizers.item[i], p));
  for (size_t i = 0; i < p->count; i++) p->piece[i].shift = p->now.span[p->piece[i].at].from;
  return cut_at_added(t, &t->added.normalized, p);
}

/* ---- look-ups in the added tokens, then in the model */

int32_t lm_tokenizer_ids(const lm_tokenizer *t) {
  return t->added.ids > t->model.words.ids ? t->added.ids : t->model.words.ids;
}

int32_t lm_tokenizer_id(const lm_tokenizer *t, const char *text, size_t n) {
  int32_t position = lm_vocabulary_find(&t->added.position, text, n);
  return position >= 0 ? t->added.item[position].id : lm_vocabulary_find(&t->model.words, text, n);
}

const char *lm_tokenizer_token(const lm_tokenizer *t, int32_t id, size_t *n) {
  const lm_added_token *a = lm_tokenizer_added(t, id);
  if (!a) return lm_vocabulary_text(&t->model.words, id, n);
  *n = a->content.n;
  return a->content.data;
}
