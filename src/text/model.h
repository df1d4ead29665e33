/* Splits a piece into tokens by BPE, WordPiece, Unigram or whole words. */
#pragma once

#include "base/bytes.h"
#include "text/step.h"
#include "text/vocabulary.h"

typedef enum lm_model_kind { LM_MODEL_BPE, LM_MODEL_WORDPIECE, LM_MODEL_UNIGRAM, LM_MODEL_WORD_LEVEL } lm_model_kind;

typedef struct lm_model_token {
  int32_t id;
  uint32_t from, to; /* byte range in the piece */
} lm_model_token;

typedef struct lm_model_tokens {
  lm_model_token *item;
  size_t n, capacity;
} lm_model_tokens;

typedef struct lm_merge { /* a merge of two tokens; `pair` is UINT64_MAX in an empty slot */
  uint64_t pair;
  int32_t rank, id;
} lm_merge;

typedef struct lm_symbol { /* a symbol of the word being merged, in a linked list */
  int32_t id, before, after;
  uint32_t n; /* bytes; 0 once merged into its left neighbor */
} lm_symbol;

typedef struct lm_candidate {
  int32_t rank, at, id;
} lm_candidate;

typedef struct lm_word_cache lm_word_cache;

typedef struct lm_model {
  lm_model_kind kind;
  lm_vocabulary words;
  int32_t unknown;        /* id of the unknown token; -1: none */
  lm_string unknown_text; /* the unk_token of the file, for messages */
  lm_string prefix;       /* prefix of tokens that continue a word */
  bool byte_fallback;
  int32_t byte_id[256]; /* ids of <0x00> to <0xFF>, or -1 */
  /* BPE */
  lm_string suffix; /* suffix of tokens that end a word */
  bool fuse_unknown, ignore_merges;
  lm_merge *merge;
  size_t merge_slots;
  int32_t small_id[0x800]; /* ids of characters of 1 or 2 bytes without prefix and suffix */
  lm_symbol *symbol;
  lm_candidate *heap;
  size_t symbol_capacity, heap_capacity;
  /* WordPiece */
  size_t most_characters;
  int32_t prefix_node; /* node of the trie after the prefix, or -1 */
  /* WordPiece and Unigram */
  lm_trie trie;
  /* Unigram */
  double *score;
  double least_score;
  struct lm_best {
    double score;
    int32_t from, id; /* from: start of the last piece, -1 if none ends here */
  } * best;
  size_t best_capacity;
  lm_word_cache *cache;
} lm_model;

/* Appends the tokens of the text (n > 0 bytes of UTF-8) to out; subtracts its steps from *work. */
lm_status lm_model_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
/* Builds the look-up tables of the model after its words and merges were added. */
LM_API lm_status lm_model_close(lm_model *m);
void lm_model_free(lm_model *m);

/* Allocates BPE's table of merges, for n of them. */
LM_API lm_status lm_bpe_merges(lm_model *m, size_t n);
typedef struct lm_word_part {
  const char *text;
  size_t n;
} lm_word_part;
/* Adds a merge; a pair added twice gets the later, the lowest rank merges first. joined: scratch of the caller. */
LM_API lm_status lm_bpe_add_pair(lm_model *m, lm_word_part left, lm_word_part right, int32_t rank, lm_bytes *joined);

/* Tokenize by each kind of model, append a token, and return the models' errors. */
lm_status lm_bpe_tokenize(lm_model *m, const char *text, size_t n, lm_model_tokens *out);
lm_status lm_wordpiece_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
lm_status lm_unigram_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
lm_status lm_model_put(lm_model_tokens *out, int32_t id, size_t from, size_t to);
lm_status lm_model_fail_no_unknown(const lm_model *m, const char *text, size_t n); /* returns the error */
lm_status lm_model_fail_too_long(void);                                            /* returns the error: out of steps */

/* Caches the tokens of recent words (model_tokens.c). */
void lm_word_cache_free(lm_word_cache *c);
/* Returns true if the word is cached, and appends its tokens to out; *status is LM_E_OOM if that fails. */
bool lm_word_cache_find(const lm_word_cache *c, uint64_t hash, const char *text, size_t n, lm_model_tokens *out,
                        lm_status *status);
/* Caches the tokens of out from `first` on as those of the word. Out of memory, it caches nothing. */
void lm_word_cache_put(lm_word_cache **c, uint64_t hash, const char *text, size_t n, const lm_model_tokens *out,
                       size_t first);
