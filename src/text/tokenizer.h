/* Tokenizers as Hugging Face's tokenizer.json describes them: a text is normalized, cut, made into tokens by a model,
 * and gets the special tokens of a post-processor. Results are those of `tokenizers` 0.23, but that ids may count from
 * 1 and that offsets are bytes. A tokenizer is for one thread at a time: it remembers words. */
#pragma once

#include "base/bytes.h"
#include "text/model.h"

typedef struct lm_added_token {
  lm_string content, normalized; /* normalized.data is NULL where it is the content */
  int32_t id;
  bool single_word, lstrip, rstrip, is_normalized, special;
} lm_added_token;

typedef struct lm_added_tokens {
  lm_added_token *item;
  size_t n, capacity;
  lm_vocabulary position;  /* in item, by content */
  int32_t next_id;         /* of one that the model does not have */
  lm_trie raw, normalized; /* of positions in item; those that are looked for before normalizing, and after */
  int32_t *by_id;          /* a place in item, or -1 */
  int32_t ids;
} lm_added_tokens;

typedef struct lm_steps {
  lm_step *item;
  size_t n, capacity;
} lm_steps;

typedef struct lm_token {
  int32_t id, type_id;
  int32_t word;           /* of the piece that it was made of; -1: a special token of the post-processor */
  uint32_t from, to;      /* bytes of the text, from 0; 0, 0 of such special tokens */
  uint32_t before, after; /* spaces at the ends of an added token's text */
  bool special, added;
  bool second; /* of the second text, in the first part, where a template put it */
} lm_token;

typedef struct lm_tokens {
  lm_token *item;
  size_t n, capacity;
} lm_tokens;

typedef struct lm_truncation {
  int64_t most; /* -1: none */
  int strategy; /* 0 the longest first, 1 only the first, 2 only the second */
  bool left;
} lm_truncation;

typedef struct lm_tokenizer {
  lm_steps normalizers, pre_tokenizers, post_processors, decoders;
  bool has_decoder;
  lm_model model;
  lm_added_tokens added;
  lm_pieces pieces; /* from here on for encoding */
  lm_model_tokens found;
} lm_tokenizer;

LM_API void lm_tokenizer_free(lm_tokenizer *t); /* NULL is fine */
/* One more than the largest id; tokens that are there. */
LM_API int32_t lm_tokenizer_ids(const lm_tokenizer *t);
LM_API int32_t lm_tokenizer_id(const lm_tokenizer *t, const char *text, size_t n);   /* -1: none */
LM_API const char *lm_tokenizer_token(const lm_tokenizer *t, int32_t id, size_t *n); /* NULL: none */
LM_API const lm_added_token *lm_tokenizer_added(const lm_tokenizer *t, int32_t id);  /* NULL: none */
/* A token more, at an id of its own unless the text has one; good once lm_added_close was called. */
LM_API lm_status lm_tokenizer_add(lm_tokenizer *t, const char *text, size_t n, const lm_added_token *as, int32_t *id);

LM_API lm_status lm_added_close(lm_tokenizer *t);

/* The tokens of a text, or of a pair (pair may be NULL); out is emptied first. */
LM_API lm_status lm_tokenizer_encode(lm_tokenizer *t, const char *text, size_t n, const char *pair, size_t pair_n,
                                     bool special, const lm_truncation *truncation, lm_tokens *out);
/* The text of ids; those that are no tokens are left out, as are special ones if skip_special. */
LM_API lm_status lm_tokenizer_decode(lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, lm_bytes *out);

/* ---- between the files of this folder */
/* added_tokens.c */
void lm_added_free(lm_added_tokens *a);
/* Cuts out the added tokens and normalizes the rest. */
lm_status lm_added_cut(lm_tokenizer *t, lm_pieces *p);
/* post_process.c: first and, of a pair, second become out. */
/* How many spaces, or characters for a space's byte, stand at the ends of a token; of more than `most` that many. */
void lm_count_spaces(const char *text, size_t n, size_t most, uint32_t *before, uint32_t *after);
size_t lm_post_added(const lm_tokenizer *t, bool pair); /* how many tokens it adds */
lm_status lm_post_process(const lm_tokenizer *t, const char *const text[2], lm_tokens part[2], bool pair, bool special,
                          lm_tokens *out);
