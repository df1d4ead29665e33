/* Encodes and decodes as Hugging Face's tokenizer.json describes: normalizers, pre-tokenizers, a model, and a
 * post-processor that adds special tokens. Results equal those of `tokenizers` 0.23, except that ids may count from 1
 * and that offsets are bytes. A tokenizer caches words: use one per thread. */
#pragma once

#include "base/bytes.h"
#include "text/model.h"

typedef struct lm_added_token {
  lm_string content, normalized; /* normalized.data: NULL if equal to content */
  int32_t id;
  bool single_word, lstrip, rstrip, is_normalized, special;
} lm_added_token;

typedef struct lm_added_tokens {
  lm_added_token *item;
  size_t n, capacity;
  lm_vocabulary position;  /* index into item, by content */
  int32_t next_id;         /* next free id, for tokens that the model lacks */
  lm_trie raw, normalized; /* indices into item: tokens matched before normalizing, and after it */
  int32_t *by_id;          /* index into item, or -1 */
  int32_t ids;
} lm_added_tokens;

typedef struct lm_steps {
  lm_step *item;
  size_t n, capacity;
} lm_steps;

typedef struct lm_token {
  int32_t id, type_id;
  int32_t word;           /* index of the piece; -1: a special token of the post-processor */
  uint32_t from, to;      /* bytes of the text, from 0; 0, 0 for special tokens of the post-processor */
  uint32_t before, after; /* counts of spaces at both ends of an added token's text */
  bool special, added;
  bool second; /* true for a token of the pair that a template moved into the first part */
} lm_token;

typedef struct lm_tokens {
  lm_token *item;
  size_t n, capacity;
} lm_tokens;

typedef struct lm_truncation {
  int64_t most; /* -1: none */
  int strategy; /* 0 longest first, 1 only the first text, 2 only the second */
  bool left;
} lm_truncation;

typedef struct lm_tokenizer {
  lm_steps normalizers, pre_tokenizers, post_processors, decoders;
  bool has_decoder;
  lm_model model;
  lm_added_tokens added;
  lm_pieces pieces; /* buffer of encoding, as is the next field */
  lm_model_tokens found;
} lm_tokenizer;

LM_API void lm_tokenizer_free(lm_tokenizer *t); /* t may be NULL */
/* Returns the greatest id plus 1; not every id below it has a token. */
LM_API int32_t lm_tokenizer_ids(const lm_tokenizer *t);
LM_API int32_t lm_tokenizer_id(const lm_tokenizer *t, const char *text, size_t n);   /* -1: none */
LM_API const char *lm_tokenizer_token(const lm_tokenizer *t, int32_t id, size_t *n); /* NULL: none */
LM_API const lm_added_token *lm_tokenizer_added(const lm_tokenizer *t, int32_t id);  /* NULL: none */
/* Adds a token with the flags of `as`, at the text's id or else the next free id (*id); lm_added_close ends adding. */
LM_API lm_status lm_tokenizer_add(lm_tokenizer *t, const char *text, size_t n, const lm_added_token *as, int32_t *id);

LM_API lm_status lm_added_close(lm_tokenizer *t);

/* Writes the tokens of a text or a pair (pair: NULL for one text) to out, emptied first. special: add special tokens.
 * */
LM_API lm_status lm_tokenizer_encode(lm_tokenizer *t, const char *text, size_t n, const char *pair, size_t pair_n,
                                     bool special, const lm_truncation *truncation, lm_tokens *out);
/* Appends the text of n ids to out. Skips ids without a token and, if skip_special, special tokens. */
LM_API lm_status lm_tokenizer_decode(lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, lm_bytes *out);

/* ---- shared by the files of this folder */
/* Frees the added tokens. */
void lm_added_free(lm_added_tokens *a);
/* Cuts out the added tokens and normalizes the remaining text. */
lm_status lm_added_cut(lm_tokenizer *t, lm_pieces *p);
/* Counts the leading and trailing spaces (or byte-level space characters) of a token, each up to `most`. */
void lm_count_spaces(const char *text, size_t n, size_t most, uint32_t *before, uint32_t *after);
size_t lm_post_added(const lm_tokenizer *t, bool pair); /* number of special tokens that templates add */
lm_status lm_post_process(const lm_tokenizer *t, const char *const text[2], lm_tokens part[2], bool pair, bool special,
                          lm_tokens *out);
