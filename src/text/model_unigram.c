/* Tokenizes by Unigram (Kudo, "Subword Regularization", 2018): finds the segmentation with the greatest sum of log
 * probabilities by Viterbi's algorithm. A character without a piece is unknown and scores 10 below the least score. */
#include "text/model.h"

static void offer_piece(struct lm_best *to, double score, size_t from, int32_t id) {
  if (to->from < 0 || score > to->score) *to = (struct lm_best){score, (int32_t)from, id};
}

static lm_status find_best(lm_model *m, const char *text, size_t n, uint64_t *work) {
  for (size_t at = 0, size; at < n; at += size) {
    double score = m->best[at].score;
    bool single = false;
    int32_t node = 0;
    size_t i = at;
    size = (size_t)lm_char_size(text[at]);
    for (; i < n && (node = lm_trie_step(&m->trie, node, text[i])) >= 0; i++) {
      int32_t id = m->trie.node[node].id;
      if (id < 0) continue;
      offer_piece(&m->best[i + 1], score + m->score[id], at, id);
      single = single || i + 1 - at == size;
    }
    if (!lm_work_take(work, i - at)) return lm_model_fail_too_long();
    if (single) continue;
    struct lm_best *to = &m->best[at + size];
    double unknown = score + (m->least_score - 10);
    if (to->from >= 0 && !(unknown > to->score)) continue;
    if (m->unknown < 0) return lm_model_fail_no_unknown(m, text + at, size);
    offer_piece(to, unknown, at, m->unknown);
  }
  return LM_OK;
}

/* Appends an unknown range as one token or, by byte fallback, one for each byte. */
static lm_status put_unknown(lm_model *m, const char *text, size_t from, size_t to, lm_model_tokens *out) {
  int32_t id = lm_vocabulary_find(&m->words, text + from, to - from);
  bool bytes = id < 0 && m->byte_fallback;
  for (size_t i = from; i < to && bytes; i++) bytes = m->byte_id[(unsigned char)text[i]] >= 0;
  if (!bytes) return lm_model_put(out, id < 0 ? m->unknown : id, from, to);
  lm_status status = LM_OK;
  for (size_t i = to; i > from && status == LM_OK; i--) { /* backward, as the caller reverses all tokens */
    status = lm_model_put(out, m->byte_id[(unsigned char)text[i - 1]], from, to);
  }
  return status;
}

lm_status lm_unigram_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out) {
  size_t first = out->n;
  if (!lm_list_grow(&m->best, &m->best_capacity, n + 1, sizeof *m->best)) return LM_E_OOM;
  for (size_t i = 0; i <= n; i++) m->best[i] = (struct lm_best){0, -1, 0};
  NEED(find_best(m, text, n, work));
  for (size_t end = n, from; end > 0; end = from) {
    int32_t id = m->best[end].id;
    from = (size_t)m->best[end].from;
    if (id != m->unknown) {
      NEED(lm_model_put(out, id, from, end));
      continue;
    }
    while (from > 0 && m->best[from].id == m->unknown) from = (size_t)m->best[from].from;
    NEED(put_unknown(m, text, from, end, out));
  }
  for (size_t i = first, j = out->n; i + 1 < j; i++) {
    lm_model_token was = out->item[i];
    out->item[i] = out->item[--j];
    out->item[j] = was;
  }
  return LM_OK;
}
