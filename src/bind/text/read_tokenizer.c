/* Makes a tokenizer, for tokenizer_new(plan, path), from the plan to which lua/luminary/text/tokenizer_json.lua
 * converts a file; the path is for messages.
 *
 *   plan.normalizer, .pre_tokenizer, .post_processor, .decoder   lists of steps, or nil
 *   step    type = its name in tokenizer.json, and fields of lm_step: text, word, literal | regex (its pattern),
 *     behavior, prepend, first, second, on = list of booleans, charsmap = base64, single, pair = flat lists of
 *     sequence, id, type
 *   plan.model   type, vocab = ids by token, or a list of {token, score}; merges = list of "A B" or {A, B}; fields of
 *     lm_model: unknown_text, prefix, suffix, fuse_unknown, byte_fallback, ignore_merges, most_characters, unknown */
#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "bind/text/tokenizer.h"

/* ---- fields of the table at i */

static bool is_id(lua_State *L, int i, int32_t *out) {
  double v = lua_type(L, i) == LUA_TNUMBER ? lua_tonumber(L, i) : -1;
  if (!(v >= 0 && v < INT32_MAX) || v != (int32_t)v) return false;
  *out = (int32_t)v;
  return true;
}

/* Pushes the field, or nil; returns whether the table has it. */
static bool push_field(lua_State *L, int i, const char *name) {
  if (lm_field(L, i, name)) return true;
  lua_pushnil(L);
  return false;
}

/* Reads an integer from 0 to below - 1; *out stays unchanged if the field is missing. */
static lm_status read_int(lua_State *L, int i, const char *name, int32_t below, int32_t *out) {
  bool there = push_field(L, i, name), right = !there || (is_id(L, -1, out) && *out < below);
  lua_pop(L, 1);
  return right ? LM_OK : lm_fail(LM_E_ARG, "%s must be an integer from 0 to %d", name, below - 1);
}

static bool read_flag(lua_State *L, int i, const char *name) {
  push_field(L, i, name);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* Returns the field's text, borrowed from the table; NULL if it has none. */
static const char *find_text(lua_State *L, int i, const char *name, size_t *n) {
  bool is_text = push_field(L, i, name) && lua_type(L, -1) == LUA_TSTRING;
  const char *text = is_text ? lua_tolstring(L, -1, n) : NULL;
  lua_pop(L, 1);
  return text;
}

static lm_status read_text(lua_State *L, int i, const char *name, lm_string *out) {
  size_t n;
  const char *text = find_text(L, i, name, &n);
  if (!text) return LM_OK;
  if (lm_utf8_check(text, n) < n) return lm_fail(LM_E_IO, "%s must be valid UTF-8", name);
  return lm_text_copy(out, text, n);
}

/* ---- steps */

static lm_status read_pattern(lua_State *L, int i, lm_step *s) {
  size_t n;
  const char *text = find_text(L, i, "literal", &n);
  lm_status (*make)(const char *, size_t, lm_pattern **) = text ? lm_pattern_literal : lm_pattern_regex;
  if (!text) text = find_text(L, i, "regex", &n);
  if (!text) return LM_OK;
  return lm_utf8_check(text, n) < n ? lm_fail(LM_E_IO, "pattern must be valid UTF-8") : make(text, n, &s->pattern);
}

static lm_status read_template(lua_State *L, int i, const char *name, lm_template **out, size_t *count) {
  lm_status status = LM_OK;
  size_t n = push_field(L, i, name) && lua_istable(L, -1) ? lua_objlen(L, -1) / 3 : 0;
  if (n > 0 && !(*out = lm_calloc(n, sizeof **out))) status = LM_E_OOM;
  for (size_t k = 0; k < n && status == LM_OK; k++) {
    for (int field = 1; field <= 3; field++) lua_rawgeti(L, -field, (int)k * 3 + field);
    lm_template *t = &(*out)[k];
    t->sequence = (int)lua_tonumber(L, -3);
    if (!is_id(L, -2, &t->id) || !is_id(L, -1, &t->type_id) || t->sequence < -1 || t->sequence > 1) {
      status = lm_fail(LM_E_ARG, "%s must be a list of sequences, ids and types", name);
    }
    lua_pop(L, 3);
    *count = k + 1;
  }
  lua_pop(L, 1);
  return status;
}

static lm_step_kind find_kind(const char *part, const char *name) {
  static const char *const names[][2] = {
#define X(kind, ...) {__VA_ARGS__},
      LM_STEP_KINDS(X)
#undef X
  };
  int kind = 0;
  while (kind < LM_STEP_NONE && (strcmp(names[kind][0], part) != 0 || strcmp(names[kind][1], name) != 0)) kind++;
  return (lm_step_kind)kind;
}

/* Reads the step at i on the stack into s, which is empty. */
static lm_status read_step(lua_State *L, int i, const char *part, lm_step *s) {
  lm_status status = LM_OK;
  size_t n;
  const char *type = lua_istable(L, i) ? find_text(L, i, "type", &n) : NULL;
  int32_t behavior = 0, prepend = 0;
  if (!type) return lm_fail(LM_E_IO, "type is missing");
  s->kind = find_kind(part, type);
  if (s->kind == LM_STEP_NONE) return lm_fail(LM_E_IO, "unsupported type '%s'", lm_ellipsize(type, 40));
  TRY(read_text(L, i, "text", &s->text));
  TRY(read_text(L, i, "word", &s->word));
  TRY(read_pattern(L, i, s));
  TRY(read_int(L, i, "behavior", LM_CUT_CONTIGUOUS + 1, &behavior));
  TRY(read_int(L, i, "prepend", LM_PREPEND_NEVER + 1, &prepend));
  TRY(read_int(L, i, "first", INT32_MAX, &s->first));
  TRY(read_int(L, i, "second", INT32_MAX, &s->second));
  TRY(read_template(L, i, "single", &s->single, &s->nsingle));
  TRY(read_template(L, i, "pair", &s->pair, &s->npair));
  s->behavior = (lm_behavior)behavior;
  s->prepend = (lm_prepend)prepend;
  push_field(L, i, "on");
  for (int k = 0; k < 4 && lua_istable(L, -1); k++) {
    lua_rawgeti(L, -1, k + 1);
    s->on[k] = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  if (s->kind == LM_NORM_CHARSMAP) {
    const char *map = find_text(L, i, "charsmap", &n);
    TRY(lm_step_set_charsmap(s, map, map ? n : 0));
  }
done:
  if (status != LM_OK && status != LM_E_OOM) lm_fail_in(status, type);
  return status;
}

static lm_status read_steps(lua_State *L, int i, const char *part, lm_steps *out) {
  lm_status status = LM_OK;
  for (int k = 1; status == LM_OK; k++) {
    lua_rawgeti(L, i, k);
    bool end = lua_isnil(L, -1);
    if (!end) {
      if (!LM_APPEND(out->item, out->n, out->capacity, (lm_step){0})) return LM_E_OOM;
      status = read_step(L, lua_gettop(L), part, &out->item[out->n - 1]);
    }
    lua_pop(L, 1);
    if (end) break;
  }
  return status;
}

/* ---- the model, at i on the stack */

/* Adds the token at i on the stack under `id`. */
static lm_status add_word(lua_State *L, int i, lm_model *m, int32_t id) {
  size_t n;
  const char *text = lua_tolstring(L, i, &n);
  if (lm_utf8_check(text, n) < n) return lm_fail(LM_E_IO, "vocab: the token of id %d must be valid UTF-8", id);
  return lm_vocabulary_add(&m->words, text, n, id);
}

static lm_status read_ids(lua_State *L, int i, lm_model *m) {
  lm_status status = LM_OK;
  int32_t id = 0;
  for (lua_pushnil(L); status == LM_OK && lua_next(L, i); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) {
      status = lm_fail(LM_E_IO, "vocab must be an object of tokens and their ids");
    } else if (!is_id(L, -1, &id)) {
      char seen[40] = "";
      if (lua_type(L, -1) == LUA_TNUMBER) lm_write(seen, sizeof seen, ", got %.17g", lua_tonumber(L, -1));
      status = lm_fail(LM_E_IO, "vocab: the id of '%s' must be an integer from 0 to %d%s",
                       lm_ellipsize(lua_tostring(L, -2), 40), INT32_MAX - 1, seen);
    } else {
      status = add_word(L, -2, m, id);
    }
  }
  return status;
}

static lm_status read_scores(lua_State *L, int i, lm_model *m) {
  lm_status status = LM_OK;
  int n = (int)lua_objlen(L, i);
  m->score = lm_malloc((size_t)n * sizeof *m->score);
  if (!m->score) return LM_E_OOM;
  for (int k = 0; k < n && status == LM_OK; k++) {
    int top = lua_gettop(L), fields = 0;
    lua_rawgeti(L, i, k + 1);
    if (lua_istable(L, -1)) {
      fields = (int)lua_objlen(L, -1);
      lua_rawgeti(L, top + 1, 1);
      lua_rawgeti(L, top + 1, 2);
    }
    if (fields != 2 || lua_type(L, top + 2) != LUA_TSTRING || lua_type(L, top + 3) != LUA_TNUMBER) {
      status = lm_fail(LM_E_IO, "vocab: entry %d must be a list of a token and its score", k + 1);
    } else {
      m->score[k] = lua_tonumber(L, top + 3);
      status = add_word(L, top + 2, m, k);
    }
    lua_settop(L, top);
  }
  return status;
}

/* Splits the merge on top of the stack, a list of two tokens or "A B", into part, borrowed; false for anything else. */
static bool split_merge(lua_State *L, lm_word_part part[2]) {
  if (lua_type(L, -1) == LUA_TSTRING) {
    size_t all;
    const char *text = lua_tolstring(L, -1, &all), *space = memchr(text, ' ', all);
    if (!space) return false;
    part[0] = (lm_word_part){text, (size_t)(space - text)};
    part[1] = (lm_word_part){space + 1, all - part[0].n - 1};
    return !memchr(part[1].text, ' ', part[1].n);
  }
  if (!lua_istable(L, -1) || lua_objlen(L, -1) != 2) return false;
  for (int k = 0; k < 2; k++) {
    lua_rawgeti(L, -1, k + 1);
    part[k].text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &part[k].n) : NULL; /* the list keeps it */
    lua_pop(L, 1);
    if (!part[k].text) return false;
  }
  return true;
}

static lm_status read_merges(lua_State *L, int i, lm_model *m) {
  lm_status status = LM_OK;
  lm_bytes joined = {0};
  int n = lua_istable(L, i) ? (int)lua_objlen(L, i) : 0;
  TRY(lm_bpe_merges(m, (size_t)n));
  for (int k = 0; k < n; k++) {
    lm_word_part part[2];
    lua_rawgeti(L, i, k + 1);
    if (!split_merge(L, part)) TRY(lm_fail(LM_E_IO, "merge %d must be a pair of tokens", k + 1));
    TRY(lm_bpe_add_pair(m, part[0], part[1], k, &joined));
    lua_pop(L, 1);
  }
done:
  lm_bytes_free(&joined);
  return status;
}

static lm_status read_model(lua_State *L, int i, lm_model *m) {
  static const char *const names[] = {"BPE", "WordPiece", "Unigram", "WordLevel", NULL}; /* as lm_model_kind */
  lm_status status;
  size_t n;
  const char *type = find_text(L, i, "type", &n);
  int kind = 0;
  int32_t most = 0;
  while (names[kind] && (!type || strcmp(names[kind], type) != 0)) kind++;
  if (!names[kind]) return lm_fail(LM_E_IO, "unsupported type '%s'", lm_ellipsize(type ? type : "", 40));
  m->kind = (lm_model_kind)kind;
  m->unknown = -1;
  TRY(read_text(L, i, "unknown_text", &m->unknown_text));
  TRY(read_text(L, i, "prefix", &m->prefix));
  TRY(read_text(L, i, "suffix", &m->suffix));
  TRY(read_int(L, i, "unknown", INT32_MAX, &m->unknown));
  TRY(read_int(L, i, "most_characters", INT32_MAX, &most));
  m->most_characters = (size_t)most;
  m->fuse_unknown = read_flag(L, i, "fuse_unknown");
  m->byte_fallback = read_flag(L, i, "byte_fallback");
  m->ignore_merges = read_flag(L, i, "ignore_merges");
  if (!push_field(L, i, "vocab") || !lua_istable(L, -1)) TRY(lm_fail(LM_E_IO, "vocab must be a table"));
  TRY((m->kind == LM_MODEL_UNIGRAM ? read_scores : read_ids)(L, lua_gettop(L), m));
  push_field(L, i, "merges");
  if (m->kind == LM_MODEL_BPE) TRY(read_merges(L, lua_gettop(L), m));
  lua_pop(L, 2);
  if (m->kind == LM_MODEL_UNIGRAM && m->unknown >= (int32_t)m->words.count) {
    TRY(lm_fail(LM_E_IO, "unk_id must be less than the number of tokens (%zu), got %d", m->words.count, m->unknown));
  }
  status = lm_model_close(m);
done:
  return status;
}

/* ---- the plan */

static lm_status read_plan(lua_State *L, lm_tokenizer *t, const char **part) {
  const struct {
    const char *name;
    lm_steps *steps;
  } parts[] = {{"normalizer", &t->normalizers},
               {"pre_tokenizer", &t->pre_tokenizers},
               {"post_processor", &t->post_processors},
               {"decoder", &t->decoders}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    *part = parts[i].name;
    bool there = push_field(L, 1, *part) && lua_istable(L, -1);
    if (there) NEED(read_steps(L, lua_gettop(L), *part, parts[i].steps));
    lua_pop(L, 1);
    t->has_decoder = there;
  }
  *part = "model";
  if (!push_field(L, 1, *part) || !lua_istable(L, -1)) NEED(lm_fail(LM_E_IO, "it is missing"));
  return read_model(L, lua_gettop(L), &t->model);
}

lm_status lm_tokenizer_read_plan(lua_State *L, lm_lua *s, void *arg) {
  lm_tokenizer **out = arg;
  const char *path, *part;
  lm_status status = lm_read_text(L, s, 2, "Tokenizer", "path", &path);
  if (status != LM_OK) return status;
  lm_tokenizer_free(*out); /* left by a first try */
  if (!(*out = lm_calloc(1, sizeof **out))) return LM_E_OOM;
  status = read_plan(L, *out, &part);
  if (status == LM_OK || status == LM_E_OOM) return status;
  lm_fail_in(status, part);
  return lm_fail_in_file(status, path, "%s", lm_error());
}
