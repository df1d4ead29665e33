/* Collects the tokens that a tokenizer's model (such as BPE) makes of a word, and caches those of recent words. */
#include <string.h>

#include "base/mem.h"
#include "text/model.h"

lm_status lm_model_put(lm_model_tokens *out, int32_t id, size_t from, size_t to) {
  lm_model_token token = {id, (uint32_t)from, (uint32_t)to};
  return LM_APPEND(out->item, out->n, out->capacity, token) ? LM_OK : LM_E_OOM;
}

lm_status lm_model_fail_no_unknown(const lm_model *m, const char *text, size_t n) {
  char shown[64];
  lm_write_bytes(shown, sizeof shown, text, n < 40 ? n : 40);
  if (m->unknown_text.data) {
    return lm_fail(LM_E_ARG, "'%s' has no token, and unk_token '%s' is not in the vocabulary", lm_ellipsize(shown, 60),
                   lm_ellipsize(m->unknown_text.data, 40));
  }
  return lm_fail(LM_E_ARG, "'%s' has no token, and the model has no unk_token", lm_ellipsize(shown, 60));
}

lm_status lm_model_fail_too_long(void) {
  return lm_fail(LM_E_ARG,
                 "text takes too many steps to tokenize: many long tokens share a prefix or consist of spaces");
}

/* ---- the cache */

enum { SLOTS = 1 << 14, MAX_BYTES = 4 << 20 };

typedef struct cached { /* a word: its text, then its tokens, are at data + at; n is 0 in an empty slot */
  uint64_t hash;
  uint32_t at, n, tokens;
} cached;

struct lm_word_cache {
  cached slot[SLOTS];
  char *data;
  size_t n, capacity;
};

void lm_word_cache_free(lm_word_cache *c) {
  if (c) lm_free(c->data);
  lm_free(c);
}

bool lm_word_cache_find(const lm_word_cache *c, uint64_t hash, const char *text, size_t n, lm_model_tokens *out,
                        lm_status *status) {
  const cached *s = c ? &c->slot[hash & (SLOTS - 1)] : NULL;
  if (!s || s->hash != hash || s->n != n || memcmp(c->data + s->at, text, n) != 0) return false;
  if (!lm_list_grow(&out->item, &out->capacity, out->n + s->tokens, sizeof *out->item)) {
    *status = LM_E_OOM;
    return true;
  }
  if (s->tokens) memcpy(out->item + out->n, c->data + s->at + n, s->tokens * sizeof *out->item);
  out->n += s->tokens;
  return true;
}

void lm_word_cache_put(lm_word_cache **cache, uint64_t hash, const char *text, size_t n, const lm_model_tokens *out,
                       size_t first) {
  lm_word_cache *c = *cache;
  if (!c) c = *cache = lm_calloc(1, sizeof *c);
  size_t tokens = out->n - first, bytes = n + tokens * sizeof *out->item;
  if (!c || bytes > MAX_BYTES) return;
  if (c->n + bytes > MAX_BYTES) { /* frequent words soon return */
    memset(c->slot, 0, sizeof c->slot);
    c->n = 0;
  }
  if (!lm_list_grow(&c->data, &c->capacity, c->n + bytes, 1)) return;
  c->slot[hash & (SLOTS - 1)] = (cached){hash, (uint32_t)c->n, (uint32_t)n, (uint32_t)tokens};
  memcpy(c->data + c->n, text, n);
  if (tokens) memcpy(c->data + c->n + n, out->item + first, tokens * sizeof *out->item);
  c->n += bytes;
}
