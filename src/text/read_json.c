/* tokenizer.json: what each part is called there, and what it says. */
#include <cjson/cJSON.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "text/tokenizer.h"

enum { MAX_STEPS = 256, MAX_AFFIX = 32 };

/* ---- texts */

/* cJSON ends texts at a zero byte. So while it has them, U+0000 is C0 80, which is no UTF-8 and in no other text. */
static const char ZERO[] = "\xC0\x80", WRITTEN_ZERO[] = "\\u0000";
enum { ZERO_BYTES = 2, WRITTEN_ZERO_BYTES = 6 };

/* JSON with \u0000 as ZERO; NULL: out of memory. */
static char *hide_zeros(const char *json, size_t n) {
  char *out = lm_malloc(n + 1), *to = out;
  for (const char *at = json, *end = json + n; out && at < end;) {
    size_t bytes = *at == '\\' && end - at > 1 ? 2 : 1;
    if (end - at >= WRITTEN_ZERO_BYTES && memcmp(at, WRITTEN_ZERO, WRITTEN_ZERO_BYTES) == 0) {
      memcpy(to, ZERO, ZERO_BYTES);
      to += ZERO_BYTES;
      at += WRITTEN_ZERO_BYTES;
      continue;
    }
    memcpy(to, at, bytes);
    to += bytes;
    at += bytes;
  }
  if (out) *to = 0;
  return out;
}

/* How many bytes there were of the JSON up to `end`. */
static size_t written_bytes(const char *hidden, const char *end) {
  size_t bytes = (size_t)(end - hidden);
  for (const char *at = hidden; (at = strstr(at, ZERO)) && at < end; at++) bytes += WRITTEN_ZERO_BYTES - ZERO_BYTES;
  return bytes;
}

/* A text of cJSON's with its zero bytes, in place; how many bytes it has. Once: for cJSON it ends at the first. */
static size_t take_text(char *text) {
  char *to = text;
  for (const char *at = text; *at; at++) {
    bool zero = at[0] == ZERO[0] && at[1] == ZERO[1];
    *to++ = zero ? 0 : *at;
    at += zero;
  }
  *to = 0;
  return (size_t)(to - text);
}

/* A text for cJSON. */
static bool add_text(cJSON *object, const char *name, const lm_string *text) {
  lm_bytes hidden = {0};
  for (size_t i = 0; i < text->n; i++) lm_put(&hidden, text->data[i] ? &text->data[i] : ZERO, text->data[i] ? 1 : 2);
  lm_put_u8(&hidden, 0);
  bool ok = !hidden.failed && cJSON_AddStringToObject(object, name, hidden.data);
  lm_bytes_free(&hidden);
  return ok;
}

/* What cJSON has, as JSON. */
static bool put_json(const cJSON *of, lm_bytes *to) {
  char *text = cJSON_PrintUnformatted(of);
  const char *from = text, *zero;
  while (from && (zero = strstr(from, ZERO))) {
    lm_put(to, from, (size_t)(zero - from));
    lm_put(to, WRITTEN_ZERO, WRITTEN_ZERO_BYTES);
    from = zero + ZERO_BYTES;
  }
  if (from) lm_put(to, from, strlen(from));
  cJSON_free(text);
  return text && !to->failed;
}

/* ---- fields */
static const cJSON *field(const cJSON *of, const char *name) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(of, name);
  return found && !cJSON_IsNull(found) ? found : NULL;
}

static lm_status must_be(const char *name, const char *bound) { return lm_fail(LM_E_IO, "%s must be %s", name, bound); }

/* What a field must be, where what it is may be of any kind: "got 'VALUE'" for a string. */
static lm_status must_be_got(const char *name, const char *bound, const cJSON *item) {
  if (!cJSON_IsString(item)) return must_be(name, bound);
  return lm_fail(LM_E_IO, "%s must be %s, got '%s'", name, bound, lm_ellipsize(item->valuestring, 40));
}

/* Where there is none, *out stays. */
static lm_status read_bool(const cJSON *of, const char *name, bool *out) {
  const cJSON *found = field(of, name);
  if (!found) return LM_OK;
  if (!cJSON_IsBool(found)) return must_be(name, "true or false");
  *out = cJSON_IsTrue(found);
  return LM_OK;
}

static bool to_int(const cJSON *item, int32_t *out) {
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < INT32_MAX)) return false;
  *out = (int32_t)item->valuedouble;
  return *out == item->valuedouble;
}

static lm_status read_int(const cJSON *of, const char *name, int32_t *out) {
  const cJSON *found = field(of, name);
  return !found || to_int(found, out) ? LM_OK : must_be(name, "an integer of at least 0");
}

static lm_status copy_text(const cJSON *item, const char *name, lm_string *out) {
  if (!cJSON_IsString(item)) return must_be(name, "a string");
  size_t n = take_text(item->valuestring);
  if (lm_utf8_check(item->valuestring, n) < n) return must_be(name, "valid UTF-8");
  return lm_text_copy(out, item->valuestring, n);
}

/* missing: what stands for it; NULL: it must be there; "" leaves out->data NULL. */
static lm_status read_text(const cJSON *of, const char *name, const char *missing, lm_string *out) {
  const cJSON *found = field(of, name);
  if (found) return copy_text(found, name, out);
  if (!missing) return lm_fail(LM_E_IO, "%s is missing", name);
  return missing[0] ? lm_text_copy(out, missing, strlen(missing)) : LM_OK;
}

/* One of a list of words, by its place. */
static lm_status read_word(const cJSON *of, const char *name, const char *const *words, int *out) {
  const cJSON *found = field(of, name);
  if (!found) return LM_OK;
  for (int i = 0; words[i] && cJSON_IsString(found); i++) {
    if (strcmp(words[i], found->valuestring) == 0) return (void)(*out = i), LM_OK;
  }
  char list[120] = "one of";
  for (int i = 0; words[i]; i++)
    lm_write(list + strlen(list), sizeof list - strlen(list), "%s '%s'", i ? "," : "", words[i]);
  return must_be_got(name, list, found);
}

static bool is_character(const lm_string *t) { return t->n > 0 && t->n == (size_t)lm_char_size(t->data[0]); }

/* ---- patterns */
static lm_status read_pattern(const cJSON *of, lm_step *s) {
  const cJSON *pattern = field(of, "pattern"), *one = pattern ? field(pattern, "String") : NULL;
  bool literal = one != NULL;
  if (cJSON_IsString(pattern)) {
    one = pattern;
    literal = true;
  }
  if (!one && pattern) one = field(pattern, "Regex");
  if (!cJSON_IsString(one)) return must_be("pattern", "a string, or an object with a String or a Regex");
  size_t n = take_text(one->valuestring);
  if (lm_utf8_check(one->valuestring, n) < n) return must_be("pattern", "valid UTF-8");
  return (literal ? lm_pattern_literal : lm_pattern_regex)(one->valuestring, n, &s->pattern);
}

static lm_status read_behavior(const cJSON *of, lm_step *s) {
  static const char *const words[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                      "MergedWithNext", "Contiguous", NULL};
  int position = LM_CUT_ISOLATED;
  lm_status status = read_word(of, "behavior", words, &position);
  s->behavior = (lm_behavior)position;
  return status;
}

/* ---- normalizers */
typedef lm_status (*step_reader)(const cJSON *of, lm_step *s);

static lm_status read_bert_normalizer(const cJSON *of, lm_step *s) {
  s->on[0] = s->on[1] = s->on[3] = true;
  NEED(read_bool(of, "clean_text", &s->on[0]));
  NEED(read_bool(of, "handle_chinese_chars", &s->on[1]));
  NEED(read_bool(of, "lowercase", &s->on[3]));
  s->on[2] = s->on[3];
  return read_bool(of, "strip_accents", &s->on[2]);
}

static lm_status read_strip(const cJSON *of, lm_step *s) {
  s->on[0] = s->on[1] = true;
  lm_status status = read_bool(of, "strip_left", &s->on[0]);
  return status == LM_OK ? read_bool(of, "strip_right", &s->on[1]) : status;
}

static lm_status read_replace(const cJSON *of, lm_step *s) {
  lm_status status = read_pattern(of, s);
  return status == LM_OK ? read_text(of, "content", NULL, &s->text) : status;
}

static lm_status read_prepend(const cJSON *of, lm_step *s) { return read_text(of, "prepend", NULL, &s->text); }

/* Bytes: how many the array takes, the array, and the texts, all of which base64 writes. */
static lm_status read_charsmap(const cJSON *of, lm_step *s) {
  const cJSON *found = field(of, "precompiled_charsmap");
  if (!found) return (void)(s->kind = LM_STEP_NONE), LM_OK;
  if (!cJSON_IsString(found)) return must_be("precompiled_charsmap", "a string");
  size_t length = strlen(found->valuestring), n = 0;
  if (length == 0) return (void)(s->kind = LM_STEP_NONE), LM_OK;
  unsigned char *bytes = lm_malloc(length);
  uint32_t size = 0;
  lm_status status = LM_OK;
  if (!bytes) return LM_E_OOM;
  bool ok = sodium_base642bin(bytes, length, found->valuestring, length, NULL, &n, NULL,
                              sodium_base64_VARIANT_ORIGINAL) == 0 &&
            n >= 4;
  if (ok) memcpy(&size, bytes, 4); /* little-endian, as every machine that this runs on */
  ok = ok && size >= 4 && size % 4 == 0 && size <= n - 4;
  const char *texts = (const char *)bytes + 4 + size;
  if (!ok || lm_utf8_check(texts, n - 4 - size) < n - 4 - size) {
    TRY(must_be("precompiled_charsmap", "base64 of a trie and its texts"));
  }
  s->nunits = size / 4;
  s->units = lm_malloc(size);
  if (!s->units) TRY(LM_E_OOM);
  memcpy(s->units, bytes + 4, size);
  TRY(lm_text_copy(&s->text, texts, n - 4 - size));
done:
  lm_free(bytes);
  return status;
}

/* ---- pre-tokenizers; some are decoders and post-processors as well */
static lm_status read_byte_level(const cJSON *of, lm_step *s) {
  static const char cuts[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  s->on[0] = s->on[1] = s->on[2] = true;
  NEED(read_bool(of, "add_prefix_space", &s->on[0]));
  NEED(read_bool(of, "trim_offsets", &s->on[1]));
  NEED(read_bool(of, "use_regex", &s->on[2]));
  if (s->kind == LM_PRE_BYTE_LEVEL) NEED(lm_pattern_regex(cuts, sizeof cuts - 1, &s->pattern));
  return LM_OK;
}

static lm_status read_metaspace(const cJSON *of, lm_step *s) {
  static const char *const words[] = {"always", "first", "never", NULL};
  int position = LM_PREPEND_ALWAYS;
  bool prefix = true;
  s->on[0] = true;
  NEED(read_text(of, "replacement", NULL, &s->text));
  NEED(read_word(of, "prepend_scheme", words, &position));
  NEED(read_bool(of, "add_prefix_space", &prefix));
  NEED(read_bool(of, "split", &s->on[0]));
  if (!is_character(&s->text)) NEED(must_be_got("replacement", "one character", field(of, "replacement")));
  s->prepend = prefix ? (lm_prepend)position : LM_PREPEND_NEVER;
  return lm_pattern_literal(s->text.data, s->text.n, &s->pattern);
}

static lm_status read_delimiter(const cJSON *of, lm_step *s) {
  NEED(read_text(of, "delimiter", NULL, &s->text));
  if (!is_character(&s->text)) return must_be_got("delimiter", "one character", field(of, "delimiter"));
  return lm_pattern_literal(s->text.data, s->text.n, &s->pattern);
}

/* on[0]: what is between the matches is looked for */
static lm_status read_split(const cJSON *of, lm_step *s) {
  NEED(read_pattern(of, s));
  NEED(read_behavior(of, s));
  return read_bool(of, "invert", &s->on[0]);
}

static lm_status read_digits(const cJSON *of, lm_step *s) { return read_bool(of, "individual_digits", &s->on[0]); }

static lm_status read_fixed_length(const cJSON *of, lm_step *s) {
  s->first = 5;
  lm_status status = read_int(of, "length", &s->first);
  if (status == LM_OK && s->first == 0) status = must_be("length", "at least 1");
  return status;
}

/* ---- post-processors */
static bool add_template(lm_template **list, size_t *n, size_t *capacity, lm_template one) {
  if (!lm_list_grow(list, capacity, *n + 1, sizeof **list)) return false;
  (*list)[(*n)++] = one;
  return true;
}

/* [text, id] */
static lm_status read_named_id(const cJSON *of, const char *name, int32_t *id) {
  const cJSON *found = field(of, name);
  if (!cJSON_IsArray(found) || cJSON_GetArraySize(found) != 2 || !to_int(cJSON_GetArrayItem(found, 1), id)) {
    return must_be(name, "a list of a token and its id");
  }
  return LM_OK;
}

/* BERT: cls A sep, cls A sep B sep of types 0 and 1; RoBERTa's have sep twice between, and type 0. */
static lm_status read_bert_processing(const cJSON *of, lm_step *s) {
  bool roberta = s->kind == LM_POST_ROBERTA;
  int32_t cls, sep;
  NEED(read_named_id(of, "cls", &cls));
  NEED(read_named_id(of, "sep", &sep));
  s->on[0] = s->on[1] = true;
  NEED(read_bool(of, "add_prefix_space", &s->on[0]));
  NEED(read_bool(of, "trim_offsets", &s->on[1]));
  const lm_template first[] = {{-1, cls, 0}, {0, 0, 0}, {-1, sep, 0}}, again = {-1, sep, 0},
                    rest[] = {{1, 0, !roberta}, {-1, sep, !roberta}};
  size_t single_capacity = 0, pair_capacity = 0;
  bool ok = true;
  for (int i = 0; i < 3; i++) {
    ok = ok && add_template(&s->single, &s->nsingle, &single_capacity, first[i]);
    ok = ok && add_template(&s->pair, &s->npair, &pair_capacity, first[i]);
  }
  if (roberta) ok = ok && add_template(&s->pair, &s->npair, &pair_capacity, again);
  for (int i = 0; i < 2; i++) ok = ok && add_template(&s->pair, &s->npair, &pair_capacity, rest[i]);
  if (!ok) NEED(LM_E_OOM);
  return LM_OK;
}

/* Special tokens, pieces, and how often a text may come: a small file stands for much otherwise. */
enum { MAX_TEMPLATE = 10000, MAX_PIECES = 1000, MAX_SEQUENCES = 16 };

static lm_status read_special(const cJSON *tokens, const cJSON *piece, int32_t type_id, lm_template **list, size_t *n,
                              size_t *capacity) {
  const cJSON *name = field(piece, "id"), *token = NULL, *id;
  if (cJSON_IsString(name)) token = field(tokens, name->valuestring);
  const cJSON *ids = token ? field(token, "ids") : NULL;
  if (!cJSON_IsArray(ids)) {
    if (!cJSON_IsString(name)) return must_be("id of a SpecialToken", "a string");
    return lm_fail(LM_E_IO, "special_tokens must have ids of '%s'", lm_ellipsize(name->valuestring, 40));
  }
  cJSON_ArrayForEach(id, ids) {
    lm_template one = {-1, 0, type_id};
    if (!to_int(id, &one.id)) return must_be("ids", "a list of ids");
    if (*n == MAX_TEMPLATE) return lm_fail(LM_E_IO, "a template must have at most %d special tokens", MAX_TEMPLATE);
    if (!add_template(list, n, capacity, one)) return LM_E_OOM;
  }
  return LM_OK;
}

static lm_status read_pieces(const cJSON *of, const char *name, bool pair, lm_template **list, size_t *n) {
  const cJSON *pieces = field(of, name), *tokens = field(of, "special_tokens"), *piece;
  size_t capacity = 0, sequences = 0;
  if (!cJSON_IsArray(pieces)) return must_be(name, "a list of pieces");
  if (cJSON_GetArraySize(pieces) > MAX_PIECES)
    return lm_fail(LM_E_IO, "%s must have at most %d pieces", name, MAX_PIECES);
  cJSON_ArrayForEach(piece, pieces) {
    const cJSON *special = field(piece, "SpecialToken"), *sequence = field(piece, "Sequence");
    lm_template one = {0, 0, 0};
    if (special) {
      NEED(read_int(special, "type_id", &one.type_id));
      NEED(read_special(tokens, special, one.type_id, list, n, &capacity));
      continue;
    }
    const cJSON *id = sequence ? field(sequence, "id") : NULL;
    bool first = cJSON_IsString(id) && strcmp(id->valuestring, "A") == 0;
    if (!first && !(pair && cJSON_IsString(id) && strcmp(id->valuestring, "B") == 0)) {
      NEED(lm_fail(LM_E_IO, "a piece of %s must be a SpecialToken or the Sequence A%s", name, pair ? " or B" : ""));
    }
    if (++sequences > MAX_SEQUENCES) {
      NEED(lm_fail(LM_E_IO, "%s must have at most %d pieces that are a Sequence", name, MAX_SEQUENCES));
    }
    one.sequence = !first;
    NEED(read_int(sequence, "type_id", &one.type_id));
    if (!add_template(list, n, &capacity, one)) NEED(LM_E_OOM);
  }
  return LM_OK;
}

static lm_status read_template(const cJSON *of, lm_step *s) {
  lm_status status = read_pieces(of, "single", false, &s->single, &s->nsingle);
  return status == LM_OK ? read_pieces(of, "pair", true, &s->pair, &s->npair) : status;
}

/* ---- decoders */
static lm_status read_bpe_decoder(const cJSON *of, lm_step *s) { return read_text(of, "suffix", "</w>", &s->text); }

static lm_status read_wordpiece_decoder(const cJSON *of, lm_step *s) {
  s->on[0] = true;
  lm_status status = read_text(of, "prefix", "##", &s->text);
  return status == LM_OK ? read_bool(of, "cleanup", &s->on[0]) : status;
}

static lm_status read_strip_decoder(const cJSON *of, lm_step *s) {
  NEED(read_text(of, "content", NULL, &s->text));
  NEED(read_int(of, "start", &s->first));
  NEED(read_int(of, "stop", &s->second));
  if (!is_character(&s->text)) NEED(must_be_got("content", "one character", field(of, "content")));
  return LM_OK;
}

static lm_status read_ctc(const cJSON *of, lm_step *s) {
  s->on[0] = true;
  NEED(read_text(of, "pad_token", "<pad>", &s->text));
  NEED(read_text(of, "word_delimiter_token", "|", &s->word));
  return read_bool(of, "cleanup", &s->on[0]);
}

/* ---- lists of steps */
typedef struct step_name {
  const char *name;
  lm_step_kind kind;
  step_reader read; /* NULL: there is nothing to say */
} step_name;

static const step_name normalizers[] = {{"BertNormalizer", LM_NORM_BERT, read_bert_normalizer},
                                        {"Strip", LM_NORM_STRIP, read_strip},
                                        {"StripAccents", LM_NORM_STRIP_ACCENTS, NULL},
                                        {"NFC", LM_NORM_NFC, NULL},
                                        {"NFD", LM_NORM_NFD, NULL},
                                        {"NFKC", LM_NORM_NFKC, NULL},
                                        {"NFKD", LM_NORM_NFKD, NULL},
                                        {"Lowercase", LM_NORM_LOWERCASE, NULL},
                                        {"Nmt", LM_NORM_NMT, NULL},
                                        {"Precompiled", LM_NORM_CHARSMAP, read_charsmap},
                                        {"Replace", LM_NORM_REPLACE, read_replace},
                                        {"Prepend", LM_NORM_PREPEND, read_prepend},
                                        {"ByteLevel", LM_NORM_BYTE_LEVEL, NULL},
                                        {NULL, LM_STEP_NONE, NULL}};
static const step_name pre_tokenizers[] = {{"BertPreTokenizer", LM_PRE_BERT, NULL},
                                           {"ByteLevel", LM_PRE_BYTE_LEVEL, read_byte_level},
                                           {"CharDelimiterSplit", LM_PRE_DELIMITER, read_delimiter},
                                           {"Metaspace", LM_PRE_METASPACE, read_metaspace},
                                           {"Whitespace", LM_PRE_WHITESPACE, NULL},
                                           {"WhitespaceSplit", LM_PRE_WHITESPACE_SPLIT, NULL},
                                           {"Punctuation", LM_PRE_PUNCTUATION, read_behavior},
                                           {"Split", LM_PRE_SPLIT, read_split},
                                           {"Digits", LM_PRE_DIGITS, read_digits},
                                           {"FixedLength", LM_PRE_FIXED_LENGTH, read_fixed_length},
                                           {NULL, LM_STEP_NONE, NULL}};
static const step_name post_processors[] = {{"ByteLevel", LM_POST_BYTE_LEVEL, read_byte_level},
                                            {"BertProcessing", LM_POST_BERT, read_bert_processing},
                                            {"RobertaProcessing", LM_POST_ROBERTA, read_bert_processing},
                                            {"TemplateProcessing", LM_POST_TEMPLATE, read_template},
                                            {NULL, LM_STEP_NONE, NULL}};
static const step_name decoders[] = {{"BPEDecoder", LM_DECODE_BPE, read_bpe_decoder},
                                     {"ByteLevel", LM_DECODE_BYTE_LEVEL, NULL},
                                     {"WordPiece", LM_DECODE_WORDPIECE, read_wordpiece_decoder},
                                     {"Metaspace", LM_DECODE_METASPACE, read_metaspace},
                                     {"ByteFallback", LM_DECODE_BYTE_FALLBACK, NULL},
                                     {"Fuse", LM_DECODE_FUSE, NULL},
                                     {"Strip", LM_DECODE_STRIP, read_strip_decoder},
                                     {"Replace", LM_DECODE_REPLACE, read_replace},
                                     {"CTC", LM_DECODE_CTC, read_ctc},
                                     {NULL, LM_STEP_NONE, NULL}};

/* `list` is what the steps of a Sequence are called. */
static lm_status read_steps(const cJSON *of, const step_name *names, const char *list, lm_steps *out) {
  const cJSON *type = field(of, "type"), *item;
  lm_status status = LM_OK;
  if (!cJSON_IsString(type)) return lm_fail(LM_E_IO, "type is missing");
  if (strcmp(type->valuestring, "Sequence") == 0) {
    const cJSON *items = field(of, list);
    if (!cJSON_IsArray(items)) return must_be(list, "a list");
    cJSON_ArrayForEach(item, items) TRY(read_steps(item, names, list, out));
    return LM_OK;
  }
  while (names->name && strcmp(names->name, type->valuestring) != 0) names++;
  if (!names->name) return lm_fail(LM_E_IO, "unsupported type '%s'", lm_ellipsize(type->valuestring, 40));
  if (out->n >= MAX_STEPS) return lm_fail(LM_E_IO, "a Sequence must have at most %d steps", MAX_STEPS);
  if (!lm_list_grow(&out->item, &out->capacity, out->n + 1, sizeof *out->item)) return LM_E_OOM;
  lm_step *s = &out->item[out->n++];
  *s = (lm_step){.kind = names->kind};
  if (names->read) status = names->read(of, s);
  if (status != LM_OK) lm_fail_in(status, names->name);
done:
  return status;
}

/* ---- models */
static lm_status read_vocabulary(const cJSON *of, lm_model *m) {
  const cJSON *words = field(of, "vocab"), *item;
  int32_t id = 0;
  if (!cJSON_IsObject(words)) return must_be("vocab", "an object of tokens and their ids");
  cJSON_ArrayForEach(item, words) {
    size_t n = take_text(item->string);
    if (!to_int(item, &id)) {
      char seen[40] = "";
      if (cJSON_IsNumber(item)) snprintf(seen, sizeof seen, ", got %.17g", item->valuedouble);
      NEED(lm_fail(LM_E_IO, "vocab: the id of '%s' must be an integer from 0 to %d%s", lm_ellipsize(item->string, 40),
                   INT32_MAX - 1, seen));
    }
    if (lm_utf8_check(item->string, n) < n) NEED(lm_fail(LM_E_IO, "vocab: the token of id %d must be valid UTF-8", id));
    NEED(lm_vocabulary_add(&m->words, item->string, n, id));
  }
  return LM_OK;
}

/* Their two tokens: a list of two, or with a space between. */
static bool split_merge(const cJSON *item, const char *part[2], size_t n[2]) {
  if (cJSON_IsString(item)) {
    size_t all = take_text(item->valuestring);
    const char *space = memchr(item->valuestring, ' ', all);
    if (!space) return false;
    part[0] = item->valuestring;
    part[1] = space + 1;
    n[0] = (size_t)(space - item->valuestring);
    n[1] = all - n[0] - 1;
    return !memchr(part[1], ' ', n[1]);
  }
  if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return false;
  for (int k = 0; k < 2; k++) {
    const cJSON *one = cJSON_GetArrayItem(item, k);
    if (!cJSON_IsString(one)) return false;
    part[k] = one->valuestring;
    n[k] = take_text(one->valuestring);
  }
  return true;
}

static lm_status read_merge(lm_model *m, const cJSON *item, int32_t rank, lm_bytes *joined) {
  const char *part[2];
  size_t n[2];
  if (!split_merge(item, part, n)) return lm_fail(LM_E_IO, "merge %d must be a pair of tokens", rank + 1);
  int32_t left = lm_vocabulary_find(&m->words, part[0], n[0]), right = lm_vocabulary_find(&m->words, part[1], n[1]);
  joined->n = 0;
  if (n[0]) lm_put(joined, part[0], n[0]);
  if (n[1] > m->prefix.n) lm_put(joined, part[1] + m->prefix.n, n[1] - m->prefix.n);
  if (joined->failed) return LM_E_OOM;
  int32_t id = joined->n && n[1] >= m->prefix.n ? lm_vocabulary_find(&m->words, joined->data, joined->n) : -1;
  if (left < 0 || right < 0 || id < 0) {
    char text[80];
    lm_write_bytes(text, sizeof text,
                   left < 0    ? part[0]
                   : right < 0 ? part[1]
                   : joined->n ? joined->data
                               : "",
                   left < 0    ? n[0]
                   : right < 0 ? n[1]
                               : joined->n);
    return lm_fail(LM_E_IO, "merge %d: '%s' is not in the vocabulary", rank + 1, lm_ellipsize(text, 80));
  }
  return lm_bpe_add_merge(m, left, right, rank, id);
}

static lm_status read_bpe(const cJSON *of, lm_model *m) {
  const cJSON *merges = field(of, "merges"), *dropout = field(of, "dropout"), *item;
  lm_bytes joined = {0};
  lm_status status;
  int32_t rank = 0;
  if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0)) {
    return lm_fail(LM_E_IO, "dropout must be null or 0; it is for training a tokenizer");
  }
  TRY(read_text(of, "unk_token", "", &m->unknown_text));
  TRY(read_text(of, "continuing_subword_prefix", "", &m->prefix));
  TRY(read_text(of, "end_of_word_suffix", "", &m->suffix));
  TRY(read_bool(of, "fuse_unk", &m->fuse_unknown));
  TRY(read_bool(of, "byte_fallback", &m->byte_fallback));
  TRY(read_bool(of, "ignore_merges", &m->ignore_merges));
  if (m->prefix.n > MAX_AFFIX || m->suffix.n > MAX_AFFIX) {
    TRY(lm_fail(LM_E_IO, "a prefix or suffix must have at most %d bytes", MAX_AFFIX));
  }
  TRY(read_vocabulary(of, m));
  if (!cJSON_IsArray(merges)) TRY(must_be("merges", "a list"));
  TRY(lm_bpe_merges(m, (size_t)cJSON_GetArraySize(merges)));
  cJSON_ArrayForEach(item, merges) TRY(read_merge(m, item, rank++, &joined));
done:
  lm_bytes_free(&joined);
  return status;
}

static lm_status read_unigram(const cJSON *of, lm_model *m) {
  const cJSON *words = field(of, "vocab"), *item;
  int32_t id = 0;
  m->unknown = -1;
  NEED(read_int(of, "unk_id", &m->unknown));
  NEED(read_bool(of, "byte_fallback", &m->byte_fallback));
  if (!cJSON_IsArray(words)) NEED(must_be("vocab", "a list of tokens and their scores"));
  m->score = lm_malloc((size_t)cJSON_GetArraySize(words) * sizeof *m->score);
  if (!m->score) NEED(LM_E_OOM);
  cJSON_ArrayForEach(item, words) {
    const cJSON *text = cJSON_IsArray(item) ? item->child : NULL, *score = text ? text->next : NULL;
    if (!cJSON_IsString(text) || !cJSON_IsNumber(score) || score->next) {
      NEED(lm_fail(LM_E_IO, "vocab: entry %d must be a list of a token and its score", id + 1));
    }
    size_t n = take_text(text->valuestring);
    if (lm_utf8_check(text->valuestring, n) < n) NEED(lm_fail(LM_E_IO, "vocab: entry %d must be valid UTF-8", id + 1));
    m->score[id] = score->valuedouble;
    NEED(lm_vocabulary_add(&m->words, text->valuestring, n, id++));
  }
  if (m->unknown >= id)
    NEED(lm_fail(LM_E_IO, "unk_id must be less than the number of tokens (%d), got %d", id, m->unknown));
  return LM_OK;
}

static lm_status read_wordpiece(const cJSON *of, lm_model *m) {
  int32_t most = 100;
  NEED(read_text(of, "unk_token", "[UNK]", &m->unknown_text));
  NEED(read_text(of, "continuing_subword_prefix", "##", &m->prefix));
  NEED(read_int(of, "max_input_chars_per_word", &most));
  m->most_characters = (size_t)most;
  return read_vocabulary(of, m);
}

static lm_status read_word_level(const cJSON *of, lm_model *m) {
  lm_status status = read_text(of, "unk_token", "<unk>", &m->unknown_text);
  return status == LM_OK ? read_vocabulary(of, m) : status;
}

/* Older files do not name the model. */
static lm_status read_model(const cJSON *of, lm_model *m) {
  static const struct {
    const char *name;
    lm_model_kind kind;
    lm_status (*read)(const cJSON *of, lm_model *m);
  } models[] = {{"BPE", LM_MODEL_BPE, read_bpe},
                {"WordPiece", LM_MODEL_WORDPIECE, read_wordpiece},
                {"Unigram", LM_MODEL_UNIGRAM, read_unigram},
                {"WordLevel", LM_MODEL_WORD_LEVEL, read_word_level}};
  if (!cJSON_IsObject(of)) return must_be("model", "an object");
  const cJSON *type = field(of, "type");
  const char *name = field(of, "merges")                      ? "BPE"
                     : cJSON_IsArray(field(of, "vocab"))      ? "Unigram"
                     : field(of, "continuing_subword_prefix") ? "WordPiece"
                                                              : "WordLevel";
  if (cJSON_IsString(type)) name = type->valuestring;
  m->unknown = -1;
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    if (strcmp(models[i].name, name) != 0) continue;
    m->kind = models[i].kind;
    lm_status status = models[i].read(of, m);
    return status == LM_OK ? lm_model_close(m) : status;
  }
  return lm_fail(LM_E_IO, "unsupported type '%s'", lm_ellipsize(name, 40));
}

/* ---- the whole */
static lm_status read_added(const cJSON *of, lm_tokenizer *t) {
  const cJSON *item;
  lm_status status = LM_OK;
  lm_string content = {0};
  int32_t id;
  if (of && !cJSON_IsArray(of)) return must_be("added_tokens", "a list");
  cJSON_ArrayForEach(item, of) {
    lm_added_token as = {.is_normalized = true};
    TRY(read_text(item, "content", NULL, &content));
    TRY(read_bool(item, "special", &as.special));
    as.is_normalized = !as.special;
    TRY(read_bool(item, "single_word", &as.single_word));
    TRY(read_bool(item, "lstrip", &as.lstrip));
    TRY(read_bool(item, "rstrip", &as.rstrip));
    TRY(read_bool(item, "normalized", &as.is_normalized));
    if (content.n > 0) TRY(lm_tokenizer_add(t, content.data, content.n, &as, &id));
  }
  TRY(lm_added_close(t));
done:
  lm_free(content.data);
  return status;
}

static lm_status keep_json(const cJSON *of, lm_string *out) {
  if (!of) return LM_OK;
  lm_bytes text = {0};
  lm_status status = put_json(of, &text) ? lm_text_copy(out, text.data, text.n) : LM_E_OOM;
  lm_bytes_free(&text);
  return status;
}

static lm_status read_part(lm_status status, const char *part) {
  return status == LM_OK ? LM_OK : lm_fail_in(status, part);
}

static lm_status read_tokenizer(const cJSON *root, lm_tokenizer *t) {
  static const struct {
    const char *name, *list;
    const step_name *steps;
    size_t at;
  } parts[] = {{"normalizer", "normalizers", normalizers, offsetof(lm_tokenizer, normalizers)},
               {"pre_tokenizer", "pretokenizers", pre_tokenizers, offsetof(lm_tokenizer, pre_tokenizers)},
               {"post_processor", "processors", post_processors, offsetof(lm_tokenizer, post_processors)},
               {"decoder", "decoders", decoders, offsetof(lm_tokenizer, decoders)}};
  if (!cJSON_IsObject(root) || !field(root, "model")) return lm_fail(LM_E_IO, "not a tokenizer.json: model is missing");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    const cJSON *of = field(root, parts[i].name);
    lm_steps *steps = (lm_steps *)(void *)((char *)t + parts[i].at);
    if (of) NEED(read_part(read_steps(of, parts[i].steps, parts[i].list, steps), parts[i].name));
  }
  t->has_decoder = field(root, "decoder") != NULL;
  NEED(read_part(read_model(field(root, "model"), &t->model), "model"));
  NEED(read_part(read_added(field(root, "added_tokens"), t), "added_tokens"));
  NEED(keep_json(field(root, "truncation"), &t->truncation));
  return keep_json(field(root, "padding"), &t->padding);
}

lm_status lm_tokenizer_read(const char *json, size_t n, const char *name, lm_tokenizer **out) {
  if (memchr(json, 0, n))
    return lm_fail_malformed(name, "JSON", LM_NO_OFFSET, "it contains a NUL byte; write it as \\u0000");
  if (strstr(json, ZERO)) return lm_fail_malformed(name, "JSON", LM_NO_OFFSET, "it is not valid UTF-8");
  lm_tokenizer *t = lm_calloc(1, sizeof *t);
  char *hidden = t && strstr(json, WRITTEN_ZERO) ? hide_zeros(json, n) : NULL;
  const char *text = hidden ? hidden : json, *end = NULL;
  if (!t || (!hidden && strstr(json, WRITTEN_ZERO))) {
    lm_tokenizer_free(t);
    return LM_E_OOM;
  }
  cJSON *root = cJSON_ParseWithLengthOpts(text, strlen(text) + 1, &end, 1);
  lm_status status = root ? read_tokenizer(root, t) : LM_E_IO;
  if (root && status != LM_OK && status != LM_E_OOM) lm_fail_in_file(status, name, "%s", lm_error());
  if (!root) lm_fail_malformed(name, "JSON", end ? (int64_t)written_bytes(text, end) + 1 : 1, "expected a JSON value");
  cJSON_Delete(root);
  lm_free(hidden);
  if (status == LM_OK) {
    *out = t;
    return LM_OK;
  }
  lm_tokenizer_free(t);
  return status;
}

/* ---- and back */
static bool write_added(const lm_added_token *a, cJSON *list) {
  cJSON *one = cJSON_CreateObject();
  bool ok = one && cJSON_AddNumberToObject(one, "id", a->id) && add_text(one, "content", &a->content) &&
            cJSON_AddBoolToObject(one, "single_word", a->single_word) &&
            cJSON_AddBoolToObject(one, "lstrip", a->lstrip) && cJSON_AddBoolToObject(one, "rstrip", a->rstrip) &&
            cJSON_AddBoolToObject(one, "normalized", a->is_normalized) &&
            cJSON_AddBoolToObject(one, "special", a->special) && cJSON_AddItemToArray(list, one);
  if (!ok) cJSON_Delete(one);
  return ok;
}

lm_status lm_tokenizer_added_json(const lm_tokenizer *t, lm_bytes *out) {
  cJSON *list = cJSON_CreateArray();
  bool ok = list != NULL;
  for (int32_t id = 0; id < t->added.ids && ok; id++) { /* in the order of their ids, as the original has them */
    const lm_added_token *a = lm_tokenizer_added(t, id);
    ok = !a || write_added(a, list);
  }
  ok = ok && put_json(list, out);
  cJSON_Delete(list);
  return ok ? LM_OK : lm_fail(LM_E_OOM, "out of memory: writing %zu tokens", t->added.n);
}
