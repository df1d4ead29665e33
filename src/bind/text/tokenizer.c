/* Binds tokenizers (text/tokenizer.h), which lua/luminary/text/ wraps for scripts:
 *
 *   tokenizer_new(plan, path)     read_tokenizer.c
 *   tokenizer_encode(t, text, pair | nil, special, most, strategy, left, base)
 *       int64 tensors: ids [n] from base, positions [n, 2] of the first and last byte from 1, type ids [n], 1 for
 *       special tokens [n], the words' numbers from 1, or 0 [n]. most: the maximum number of tokens, or -1
 *   tokenizer_decode(t, ids, skip_special, base)    the text of an int64 tensor [n]
 *   tokenizer_id(t, token)   from 0, or nil
 *   tokenizer_token(t, id)   its text, or nil; whether it is an added token; whether it is special
 *   tokenizer_size(t)        one more than the largest id, and the number of the model's tokens
 *   tokenizer_add(t, list of {content, single_word, lstrip, rstrip, normalized, special})    the number of new tokens
 *   tokenizer_added(t)       the added tokens: a list of the same with their ids
 */
#include "bind/text/tokenizer.h"
#include "base/mem.h"
#include "base/message.h"

LM_HELD_TYPE(tokenizer, lm_tokenizer, lm_tokenizer_free, "luminary.tokenizer", "a tokenizer", NULL, NULL)

LM_FUNCTION_AS(tokenizer_new, "Tokenizer", (table, plan), (any, files)) {
  lm_tokenizer **tokenizer = lm_object_new(L, &tokenizer_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), lm_tokenizer_read_plan, tokenizer));
  lua_settop(L, 3);
  return 1;
}

/* ---- encode */
enum { IDS, POSITIONS, TYPES, SPECIALS, WORDS, RESULTS };

static lm_status make_results(const lm_tokens *tokens, int64_t base, lm_tensor **result) {
  int64_t *out[RESULTS], n = (int64_t)tokens->n, size[2] = {n, 2};
  lm_status status = LM_OK;
  for (int i = 0; i < RESULTS; i++) {
    TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), i == POSITIONS ? 2 : 1, size, LM_CONTIGUOUS, &result[i]));
    out[i] = (int64_t *)result[i]->data;
  }
  for (int64_t i = 0; i < n; i++) {
    const lm_token *t = &tokens->item[i];
    out[IDS][i] = t->id + base;
    out[POSITIONS][2 * i] = (int64_t)t->from + 1;
    out[POSITIONS][2 * i + 1] = t->to;
    out[TYPES][i] = t->type_id;
    out[SPECIALS][i] = t->special;
    out[WORDS][i] = t->word + 1;
  }
done:
  if (status != LM_OK) {
    for (int i = 0; i < RESULTS; i++) {
      lm_release(result[i]);
      result[i] = NULL;
    }
  }
  return status;
}

static lm_status encode_text(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "encode";
  lm_tokenizer *t = *(lm_tokenizer **)lua_touserdata(L, 1);
  lm_tokens tokens = {0};
  lm_truncation truncation = {0};
  int64_t most, strategy, base;
  bool special;
  size_t n, pair_n = 0;
  const char *text = lua_tolstring(L, 2, &n), *pair = lua_tolstring(L, 3, &pair_n);
  lm_status status;
  TRY(LM_READ_ARGS(L, s, 4, fn, {"special", LM_ARG_B, &special}, {"most", LM_ARG_I, &most},
                   {"strategy", LM_ARG_I, &strategy}, {"left", LM_ARG_B, &truncation.left}, {"base", LM_ARG_I, &base}));
  truncation.most = most;
  truncation.strategy = strategy == 1 ? 1 : strategy == 2 ? 2 : 0;
  TRY(lm_tokenizer_encode(t, text, n, pair, pair_n, special, &truncation, &tokens));
  TRY(make_results(&tokens, base, arg));
done:
  lm_free(tokens.item);
  return status == LM_OK || status == LM_E_OOM ? status : lm_fail_in(status, fn);
}

LM_FUNCTION_AS(tokenizer_encode, "encode", (tokenizer, t), (string, text), (string, pair, (lm_lua_string){0}),
               (any, special), (any, most), (any, a), (any, b), (any, c)) {
  lm_tensor *result[RESULTS] = {0};
  return lm_return_tensors(L, 8, RESULTS, encode_text, result, result);
}

/* ---- decode */
typedef struct decoding {
  lm_tokenizer *t;
  lm_bytes *text;
} decoding;

static lm_status decode_ids(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "decode";
  decoding *d = arg;
  lm_tensor *ids;
  bool skip;
  int64_t base;
  int32_t *from = NULL;
  lm_status status;
  TRY(LM_READ_ARGS(L, s, 2, fn, {"ids", LM_ARG_INT64S, &ids}, {"skip_special_tokens", LM_ARG_B, &skip},
                   {"base", LM_ARG_I, &base}));
  from = lm_malloc((size_t)ids->numel * sizeof *from);
  if (!from) TRY(LM_E_OOM);
  for (int64_t i = 0; i < ids->numel; i++) {
    int64_t id = ((const int64_t *)ids->data)[i];
    if (id < base) TRY(lm_fail_int(fn, "ids", lm_text("at least %lld", (long long)base), id));
    from[i] = id - base < INT32_MAX ? (int32_t)(id - base) : INT32_MAX;
  }
  d->text->n = 0;
  TRY(lm_tokenizer_decode(d->t, from, (size_t)ids->numel, skip, d->text));
  if (d->text->failed) TRY(lm_fail(LM_E_OOM, "out of memory: decoding tokens"));
done:
  lm_free(from);
  return status == LM_OK || status == LM_E_OOM ? status : lm_fail_in(status, fn);
}

LM_FUNCTION_AS(tokenizer_decode, "decode", (tokenizer, t), (any, ids), (any, skip), (any, tidy)) {
  decoding d = {t, lm_buffer_new(L)};
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), decode_ids, &d));
  lua_pushlstring(L, d.text->n ? d.text->data : "", d.text->n);
  lm_bytes_free(d.text);
  return 1;
}

/* ---- tokens */
LM_FUNCTION_AS(tokenizer_id, "token_to_id", (tokenizer, t), (string, token)) {
  int32_t id = lm_tokenizer_id(t, token.text, token.n);
  return id < 0 ? 0 : lm_return_int(L, id);
}

LM_FUNCTION_AS(tokenizer_token, "id_to_token", (tokenizer, t), (int, id)) {
  size_t n;
  const char *text = id < 0 || id >= INT32_MAX ? NULL : lm_tokenizer_token(t, (int32_t)id, &n);
  if (!text) return 0;
  lua_pushlstring(L, text, n);
  const lm_added_token *added = lm_tokenizer_added(t, (int32_t)id);
  lua_pushboolean(L, added != NULL);
  lua_pushboolean(L, added && added->special);
  return 3;
}

LM_FUNCTION_AS(tokenizer_size, "vocab_size", (tokenizer, t)) {
  lua_pushnumber(L, lm_tokenizer_ids(t));
  lua_pushnumber(L, (double)t->model.words.count);
  return 2;
}

LM_FUNCTION_AS(tokenizer_added, "Tokenizer:save", (tokenizer, t)) {
  lua_newtable(L);
  for (int32_t id = 0, n = 0; id < t->added.ids; id++) { /* walks ids in order, as in tokenizer.json */
    const lm_added_token *a = lm_tokenizer_added(t, id);
    if (!a) continue;
    lua_createtable(L, 0, 8);
    lm_set_number(L, "id", id);
    lua_pushlstring(L, a->content.data, a->content.n);
    lua_setfield(L, -2, "content");
    lm_set_flag(L, "single_word", a->single_word);
    lm_set_flag(L, "lstrip", a->lstrip);
    lm_set_flag(L, "rstrip", a->rstrip);
    lm_set_flag(L, "normalized", a->is_normalized);
    lm_set_flag(L, "special", a->special);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

static bool read_flag(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  bool is = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return is;
}

/* Reads the text and the flags of token i of the list at 2; false past the last. Leaves values on the stack. */
static bool read_token(lua_State *L, int i, lm_lua_string *content, lm_added_token *as) {
  lua_rawgeti(L, 2, i);
  if (!lua_istable(L, -1)) return false;
  lua_getfield(L, -1, "content");
  *content = lm_need_string(L, lua_gettop(L), "add_tokens", "content");
  lua_insert(L, -2);
  *as = (lm_added_token){.single_word = read_flag(L, "single_word"),
                         .lstrip = read_flag(L, "lstrip"),
                         .rstrip = read_flag(L, "rstrip"),
                         .is_normalized = read_flag(L, "normalized"),
                         .special = read_flag(L, "special")};
  return true;
}

/* Adds all of the tokens, or none if one of them is invalid. */
LM_FUNCTION_AS(tokenizer_add, "add_tokens", (tokenizer, t), (table, tokens)) {
  lm_added_token as;
  lm_lua_string s;
  int32_t id;
  size_t before = t->added.n;
  lm_status status = LM_OK;
  for (int i = 1; read_token(L, i, &s, &as); i++) {
    if (s.n == 0 || lm_utf8_check(s.text, s.n) < s.n) {
      lm_need(L, lm_fail(LM_E_ARG, "add_tokens: token %d must be %s", i, s.n ? "valid UTF-8" : "non-empty"));
    }
    lua_settop(L, 2);
  }
  for (int i = 1; status == LM_OK && read_token(L, i, &s, &as); i++) {
    status = lm_tokenizer_add(t, s.text, s.n, &as, &id);
    lua_settop(L, 2);
  }
  lm_status closed = lm_added_close(t);
  lm_need(L, status == LM_OK ? closed : status);
  return lm_return_number(L, (double)(t->added.n - before));
}
