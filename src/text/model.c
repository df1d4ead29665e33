#include "text/model.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"

enum { MAX_CACHED = 128 }; /* longest cached word, in bytes */

static lm_status whole_word(const lm_model *m, const char *text, size_t n, lm_model_tokens *out) {
  int32_t id = lm_vocabulary_find(&m->words, text, n);
  if (id < 0) id = m->unknown;
  return id < 0 ? lm_model_fail_no_unknown(m, text, n) : lm_model_put(out, id, 0, n);
}

static lm_status tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out) {
  switch (m->kind) {
    case LM_MODEL_BPE: return lm_bpe_tokenize(m, text, n, out);
    case LM_MODEL_UNIGRAM: return lm_unigram_tokenize(m, text, n, work, out);
    case LM_MODEL_WORDPIECE: return lm_wordpiece_tokenize(m, text, n, work, out);
    default: return whole_word(m, text, n, out);
  }
}

lm_status lm_model_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out) {
  if (n > MAX_CACHED || m->kind == LM_MODEL_WORD_LEVEL) return tokenize(m, text, n, work, out);
  uint64_t hash = lm_hash(LM_NO_HASH, text, n);
  size_t first = out->n;
  lm_status status = LM_OK;
  if (lm_word_cache_find(m->cache, hash, text, n, out, &status)) return status;
  status = tokenize(m, text, n, work, out);
  if (status == LM_OK) lm_word_cache_put(&m->cache, hash, text, n, out, first);
  return status;
}

static void find_byte_tokens(lm_model *m) {
  char text[8];
  for (int b = 0; b < 256; b++) {
    snprintf(text, sizeof text, "<0x%02X>", b);
    m->byte_id[b] = lm_vocabulary_find(&m->words, text, 6);
  }
}

static void find_small(lm_model *m) {
  for (uint32_t c = 0; c < 0x800; c++) {
    char text[4];
    m->small_id[c] = lm_vocabulary_find(&m->words, text, (size_t)lm_char_put(text, c));
  }
}

static lm_status build_trie(lm_model *m) {
  const lm_vocabulary *v = &m->words;
  LM_FREED lm_trie_key *keys = lm_malloc(v->count * sizeof *keys);
  if (!keys) return LM_E_OOM;
  for (size_t i = 0; i < v->count; i++)
    keys[i] = (lm_trie_key){v->text + v->word[i].at, v->word[i].n, v->word[i].id, (int32_t)i};
  return lm_trie_build(&m->trie, keys, v->count);
}

lm_status lm_model_close(lm_model *m) {
  NEED(lm_vocabulary_close(&m->words));
  if (m->unknown_text.data) m->unknown = lm_vocabulary_find(&m->words, m->unknown_text.data, m->unknown_text.n);
  find_byte_tokens(m);
  if (m->kind == LM_MODEL_BPE) find_small(m);
  if (m->kind == LM_MODEL_WORDPIECE || m->kind == LM_MODEL_UNIGRAM) NEED(build_trie(m));
  m->prefix_node = 0;
  for (size_t i = 0; m->kind == LM_MODEL_WORDPIECE && i < m->prefix.n && m->prefix_node >= 0; i++) {
    m->prefix_node = lm_trie_step(&m->trie, m->prefix_node, m->prefix.data[i]);
  }
  m->least_score = INFINITY;
  for (size_t i = 0; m->kind == LM_MODEL_UNIGRAM && i < m->words.count; i++) {
    if (m->score[i] < m->least_score) m->least_score = m->score[i];
  }
  return LM_OK;
}

void lm_model_free(lm_model *m) {
  lm_vocabulary_free(&m->words);
  lm_trie_free(&m->trie);
  lm_word_cache_free(m->cache);
  lm_string *texts[] = {&m->unknown_text, &m->prefix, &m->suffix};
  for (int i = 0; i < 3; i++) lm_free(texts[i]->data);
  lm_free(m->merge);
  lm_free(m->symbol);
  lm_free(m->heap);
  lm_free(m->score);
  lm_free(m->best);
  *m = (lm_model){0};
}
