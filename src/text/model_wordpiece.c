/* Tokenizes by BERT's WordPiece: takes the longest prefix of a word in the vocabulary, then continues with the rest
 * under the model's prefix ("##"). A word without such a segmentation is one unknown token. */
#include "text/model.h"

static bool is_longer(const char *text, size_t n, size_t characters) {
  size_t count = 0;
  for (size_t i = 0; i < n && count <= characters; i += (size_t)lm_char_size(text[i])) count++;
  return count > characters;
}

lm_status lm_wordpiece_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out) {
  size_t first = out->n, at = is_longer(text, n, m->most_characters) ? n + 1 : 0;
  while (at < n) {
    int32_t node = at == 0 ? 0 : m->prefix_node, id = -1;
    size_t end = at, i = at;
    for (; i < n && node >= 0; i++) {
      node = lm_trie_step(&m->trie, node, text[i]);
      if (node < 0 || m->trie.node[node].id < 0) continue;
      id = m->trie.node[node].id;
      end = i + 1;
    }
    if (!lm_work_take(work, i - at)) return lm_model_fail_too_long();
    if (id < 0) break;
    NEED(lm_model_put(out, id, at, end));
    at = end;
  }
  if (at == n) return LM_OK;
  out->n = first;
  return m->unknown < 0 ? lm_model_fail_no_unknown(m, text, n) : lm_model_put(out, m->unknown, 0, n);
}
