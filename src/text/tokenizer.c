#include "text/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "base/message.h"

static void free_step(lm_step *s) {
  lm_free(s->text.data);
  lm_free(s->word.data);
  lm_pattern_free(s->pattern);
  lm_free(s->units);
  lm_free(s->single);
  lm_free(s->pair);
  *s = (lm_step){0};
}

static void free_steps(lm_steps *s) {
  for (size_t i = 0; i < s->n; i++) free_step(&s->item[i]);
  lm_free(s->item);
}

void lm_tokenizer_free(lm_tokenizer *t) {
  if (!t) return;
  free_steps(&t->normalizers);
  free_steps(&t->pre_tokenizers);
  free_steps(&t->post_processors);
  free_steps(&t->decoders);
  lm_model_free(&t->model);
  lm_added_free(&t->added);
  lm_pieces_free(&t->pieces);
  lm_free(t->found.item);
  lm_free(t);
}

/* ---- encoding */
/* True if a post-processor excludes leading and trailing spaces from the tokens' offsets. */
static bool trims(const lm_tokenizer *t) {
  for (size_t i = 0; i < t->post_processors.n; i++) {
    const lm_step *s = &t->post_processors.item[i];
    if ((s->kind == LM_POST_BYTE_LEVEL || s->kind == LM_POST_ROBERTA) && s->on[1]) return true;
  }
  return false;
}

static lm_status put_added(lm_tokenizer *t, const lm_piece *piece, int32_t word, int32_t type_id, lm_tokens *out) {
  lm_pieces *p = &t->pieces;
  const lm_span *span = p->now.span + piece->at;
  lm_token token = {.id = piece->id,
                    .type_id = type_id,
                    .word = word,
                    .from = span[0].from,
                    .to = span[piece->n - 1].to,
                    .added = true};
  if (trims(t)) {
    lm_count_spaces(p->now.text + piece->at, piece->n, token.to - token.from + 2, &token.before, &token.after);
    if (!lm_work_take(&p->work, (uint64_t)token.before + token.after)) return lm_model_fail_too_long();
  }
  return LM_APPEND(out->item, out->n, out->capacity, token) ? LM_OK : LM_E_OOM;
}

static lm_status tokenize_piece(lm_tokenizer *t, const lm_piece *piece, int32_t word, int32_t type_id, lm_tokens *out) {
  const lm_span *span = t->pieces.now.span + piece->at;
  lm_model_tokens *found = &t->found;
  found->n = 0;
  NEED(lm_model_tokenize(&t->model, t->pieces.now.text + piece->at, piece->n, &t->pieces.work, found));
  if (!lm_list_grow(&out->item, &out->capacity, out->n + found->n, sizeof *out->item)) return LM_E_OOM;
  for (size_t i = 0; i < found->n; i++) {
    lm_model_token m = found->item[i];
    lm_token token = {
        .id = m.id, .type_id = type_id, .word = word, .from = piece->shift + m.from, .to = piece->shift + m.to};
    if (m.from < m.to && m.to <= piece->n) {
      token.from = span[m.from].from;
      token.to = span[m.to - 1].to;
    }
    out->item[out->n++] = token;
  }
  return LM_OK;
}

static lm_status encode_one(lm_tokenizer *t, const char *name, const char *text, size_t n, int32_t type_id,
                            lm_tokens *out) {
  lm_pieces *p = &t->pieces;
  size_t broken = lm_utf8_check(text, n);
  out->n = 0;
  if (broken < n) {
    return lm_fail_value("encode", name, "valid UTF-8", lm_text("0x%02X at byte %zu", text[broken] & 255u, broken + 1));
  }
  NEED(lm_pieces_begin(p, text, n));
  NEED(lm_added_cut(t, p));
  for (size_t i = 0; i < t->pre_tokenizers.n; i++) NEED(lm_pre_tokenize(&t->pre_tokenizers.item[i], p));
  for (size_t i = 0; i < p->count; i++) {
    const lm_piece *piece = &p->piece[i];
    if (piece->id >= 0) {
      NEED(put_added(t, piece, (int32_t)i, type_id, out));
    } else {
      NEED(tokenize_piece(t, piece, (int32_t)i, type_id, out));
    }
  }
  for (size_t i = 0; i < out->n; i++) { /* clips offsets: prefixes and suffixes of the model are not in the text */
    if (out->item[i].to > n) out->item[i].to = (uint32_t)n;
    if (out->item[i].from > out->item[i].to) out->item[i].from = out->item[i].to;
  }
  return LM_OK;
}

static void truncate_tokens(lm_tokens *tokens, size_t n, bool left) {
  if (tokens->n <= n) return;
  if (left && n > 0) memmove(tokens->item, tokens->item + tokens->n - n, n * sizeof *tokens->item);
  tokens->n = n;
}

/* Splits `most` tokens between two texts by longest_first: the longer text is shortened until both are equal. */
static void shares(size_t a, size_t b, size_t most, size_t *first, size_t *second) {
  size_t less = a < b ? a : b, more = a < b ? b : a;
  more = less > most || less > most - less ? less : most - less;
  if (less + more > most) {
    less = most / 2;
    more = less + most % 2;
  }
  *first = a <= b ? less : more;
  *second = a <= b ? more : less;
}

/* Shortens the parts to `most` tokens in all; `added` special tokens, not in `most`, count only in messages. */
static lm_status truncate(const lm_truncation *how, size_t most, size_t added, lm_tokens part[2], bool pair) {
  static const char *const names[] = {"longest_first", "only_first", "only_second"};
  size_t total = part[0].n + part[1].n, first, second;
  if (total <= most) return LM_OK;
  if (how->strategy == 0 || most == 0) {
    if (pair) {
      shares(part[0].n, part[1].n, most, &first, &second);
      truncate_tokens(&part[1], second, how->left);
    } else {
      first = most;
    }
    truncate_tokens(&part[0], first, how->left);
    return LM_OK;
  }
  if (how->strategy == 2 && !pair) {
    return lm_fail_value("encode", "truncation", "longest_first or only_first without a pair", names[how->strategy]);
  }
  lm_tokens *one = &part[how->strategy - 1];
  if (one->n <= total - most) {
    const char *bound = lm_text("at least %zu with truncation %s", total - one->n + 1 + added, names[how->strategy]);
    return lm_fail_int("encode", "max_length", bound, (int64_t)(most + added));
  }
  truncate_tokens(one, one->n - (total - most), how->left);
  return LM_OK;
}

lm_status lm_tokenizer_encode(lm_tokenizer *t, const char *text, size_t n, const char *pair, size_t pair_n,
                              bool special, const lm_truncation *truncation, lm_tokens *out) {
  const char *const texts[2] = {text, pair};
  lm_tokens part[2] = {{0}, {0}};
  lm_status status;
  TRY(encode_one(t, "text", text, n, 0, &part[0]));
  if (pair) TRY(encode_one(t, "pair", pair, pair_n, 1, &part[1]));
  if (truncation->most >= 0) {
    size_t most = (size_t)truncation->most, added = special ? lm_post_added(t, pair != NULL) : 0;
    if (added > most) {
      const char *bound = lm_text("at least %zu, the number of added special tokens", added);
      TRY(lm_fail_int("encode", "max_length", bound, (int64_t)most));
    }
    TRY(truncate(truncation, most - added, added, part, pair != NULL));
  }
  TRY(lm_post_process(t, texts, part, pair != NULL, special, out));
done:
  lm_free(part[0].item);
  lm_free(part[1].item);
  return status;
}
