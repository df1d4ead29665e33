/* Adds special tokens around one text or two, and trims offsets of byte-level tokens by their spaces. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"

size_t lm_post_added(const lm_tokenizer *t, bool pair) {
  size_t n = 0;
  for (size_t i = 0; i < t->post_processors.n; i++) {
    const lm_step *s = &t->post_processors.item[i];
    const lm_template *parts = pair ? s->pair : s->single;
    for (size_t k = 0; k < (pair ? s->npair : s->nsingle); k++) n += parts[k].sequence < 0;
  }
  return n;
}

static bool is_space(uint32_t c) { return c == LM_CHAR_BYTE_SPACE || lm_char_is_space(c); }

void lm_count_spaces(const char *text, size_t n, size_t most, uint32_t *before, uint32_t *after) {
  uint32_t c;
  *before = *after = 0;
  for (size_t i = 0; i < n && *before < most; ++*before) {
    i += (size_t)lm_char_at(text + i, &c);
    if (!is_space(c)) break;
  }
  for (size_t end = n; end > 0 && *after < most; ++*after) {
    end = lm_char_before(text, end, &c);
    if (!is_space(c)) break;
  }
}

/* Trims offsets by spaces; on[0]: not by one added leading space. texts: the tokens' own, that of `second` tokens. */
static void trim_offsets(const lm_tokenizer *t, const lm_step *s, const char *const *texts, lm_tokens *tokens) {
  for (size_t i = 0; i < tokens->n; i++) {
    lm_token *token = &tokens->item[i];
    const char *text = texts[token->second];
    if (!token->added && token->word >= 0) {
      size_t n = 0;
      const char *word = lm_tokenizer_token(t, token->id, &n);
      lm_count_spaces(word, n, token->to - token->from + 2, &token->before, &token->after);
    }
    uint32_t leading = token->before, trailing = token->after, from = token->from, to = token->to;
    if (leading == 1 && s->on[0] && (i == 0 || from == 0)) leading = 0;
    while (leading-- > 0 && token->from < to) token->from += (uint32_t)lm_char_size(text[token->from]);
    for (; trailing > 0 && token->to > token->from; trailing--) {
      do token->to--;
      while (token->to > token->from && (text[token->to] & 0xc0) == 0x80);
    }
  }
}

static bool append_tokens(lm_tokens *to, const lm_token *tokens, size_t n) {
  if (!lm_list_grow(&to->item, &to->capacity, to->n + n, sizeof *to->item)) return false;
  if (n) memcpy(to->item + to->n, tokens, n * sizeof *tokens);
  to->n += n;
  return true;
}

static void set_type(lm_tokens *tokens, int32_t type_id) {
  for (size_t i = 0; i < tokens->n; i++) tokens->item[i].type_id = type_id;
}

/* Arranges both parts and the special tokens by the template, as the new part[0]. */
static lm_status fill_template(const lm_step *s, lm_tokens part[2], bool pair, bool special, lm_tokens *joined) {
  const lm_template *parts = pair ? s->pair : s->single;
  joined->n = 0;
  for (size_t k = 0; k < (pair ? s->npair : s->nsingle); k++) {
    lm_template one = parts[k];
    if (one.sequence >= 0) {
      set_type(&part[one.sequence], one.type_id);
      if (!append_tokens(joined, part[one.sequence].item, part[one.sequence].n)) return LM_E_OOM;
      for (size_t i = joined->n - part[one.sequence].n; i < joined->n; i++) joined->item[i].second = one.sequence == 1;
    } else if (special) {
      lm_token token = {.id = one.id, .type_id = one.type_id, .word = -1, .special = true};
      if (!append_tokens(joined, &token, 1)) return LM_E_OOM;
    }
  }
  lm_tokens was = part[0];
  part[0] = *joined;
  *joined = was;
  part[1].n = 0;
  return LM_OK;
}

lm_status lm_post_process(const lm_tokenizer *t, const char *const text[2], lm_tokens part[2], bool pair, bool special,
                          lm_tokens *out) {
  lm_tokens joined = {0};
  lm_status status = LM_OK;
  bool filled = false; /* at most one template applies */
  for (size_t i = 0; i < t->post_processors.n; i++) {
    const lm_step *s = &t->post_processors.item[i];
    if ((s->kind == LM_POST_BYTE_LEVEL || s->kind == LM_POST_ROBERTA) && s->on[1]) {
      for (int k = 0; k <= pair; k++) trim_offsets(t, s, text + k, &part[k]);
    }
    if (s->kind == LM_POST_ROBERTA) {
      for (int k = 0; k <= pair; k++) set_type(&part[k], 0);
    }
    if (s->nsingle == 0 || filled || (s->kind != LM_POST_TEMPLATE && !special)) continue;
    TRY(fill_template(s, part, pair, special, &joined));
    filled = true;
  }
  out->n = 0;
  for (int k = 0; k <= pair; k++) {
    if (!append_tokens(out, part[k].item, part[k].n)) TRY(LM_E_OOM);
  }
done:
  lm_free(joined.item);
  return status;
}
