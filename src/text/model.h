/* What makes tokens of a piece: byte pairs, WordPiece, Unigram, or whole words. */
#pragma once

#include "base/bytes.h"
#include "text/step.h"
#include "text/vocabulary.h"

typedef enum lm_model_kind { LM_MODEL_BPE, LM_MODEL_WORDPIECE, LM_MODEL_UNIGRAM, LM_MODEL_WORD_LEVEL } lm_model_kind;

typedef struct lm_model_token {
  int32_t id;
  uint32_t from, to; /* bytes of the piece */
} lm_model_token;

typedef struct lm_model_tokens {
  lm_model_token *item;
  size_t n, capacity;
} lm_model_tokens;

typedef struct lm_merge { /* of a pair of tokens; `pair` is UINT64_MAX in an empty slot */
  uint64_t pair;
  int32_t rank, id;
} lm_merge;

typedef struct lm_symbol { /* of a word that is being merged, in a list */
  int32_t id, before, after;
  uint32_t n; /* bytes; 0 once it is part of another */
} lm_symbol;

typedef struct lm_candidate {
  int32_t rank, at, id;
} lm_candidate;

typedef struct lm_word_cache lm_word_cache;

typedef struct lm_model {
  lm_model_kind kind;
  lm_vocabulary words;
  int32_t unknown;        /* -1: none */
  lm_string unknown_text; /* that was asked for, for messages */
  lm_string prefix;       /* of what continues a word */
  bool byte_fallback;
  int32_t byte_id[256]; /* of <0x00> and on, or -1 */
  /* BPE */
  lm_string suffix; /* of a word's end */
  bool fuse_unknown, ignore_merges;
  lm_merge *merge;
  size_t merge_slots;
  int32_t small_id[0x800]; /* of characters of one or two bytes, where they have neither prefix nor suffix */
  lm_symbol *symbol;
  lm_candidate *heap;
  size_t symbol_capacity, heap_capacity;
  /* WordPiece */
  size_t most_characters;
  int32_t prefix_node; /* of the trie, or -1 */
  /* WordPiece and Unigram */
  lm_trie trie;
  /* Unigram */
  double *score;
  double least_score;
  struct lm_best {
    double score;
    int32_t from, id; /* from: -1 where nothing ends */
  } * best;
  size_t best_capacity;
  lm_word_cache *cache;
} lm_model;

/* Adds the tokens of the text (n > 0 bytes of UTF-8) to out; takes steps of *work. */
lm_status lm_model_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
/* Makes what the model needs beside its words and merges. */
LM_API lm_status lm_model_close(lm_model *m);
void lm_model_free(lm_model *m);

/* BPE: two tokens become a third; a lower rank goes first. Of a pair twice the later counts. `joined` is room for them,
 * the caller's to free. */
LM_API lm_status lm_bpe_merges(lm_model *m, size_t n); /* room for n */
typedef struct lm_word_part {
  const char *text;
  size_t n;
} lm_word_part;
LM_API lm_status lm_bpe_add_pair(lm_model *m, lm_word_part left, lm_word_part right, int32_t rank, lm_bytes *joined);

/* Between the files of the models. */
lm_status lm_bpe_tokenize(lm_model *m, const char *text, size_t n, lm_model_tokens *out);
lm_status lm_wordpiece_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
lm_status lm_unigram_tokenize(lm_model *m, const char *text, size_t n, uint64_t *work, lm_model_tokens *out);
lm_status lm_model_put(lm_model_tokens *out, int32_t id, size_t from, size_t to);
lm_status lm_model_no_unknown(const lm_model *m, const char *text, size_t n); /* the error */
lm_status lm_model_too_long(void);                                            /* where the work was too much */

/* model_tokens.c: the tokens of words that were there lately. */
void lm_word_cache_free(lm_word_cache *c);
/* Whether they are there; then they are added to out. */
bool lm_word_cache_find(const lm_word_cache *c, uint64_t hash, const char *text, size_t n, lm_model_tokens *out,
                        lm_status *status);
/* Those of out from `first` on. Out of memory it keeps none. */
void lm_word_cache_put(lm_word_cache **c, uint64_t hash, const char *text, size_t n, const lm_model_tokens *out,
                       size_t first);
