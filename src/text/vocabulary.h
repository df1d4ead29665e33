/* Looks up tokens by text: a hash table finds whole texts, a trie the tokens that a text begins with. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* True if `position`, in a table of `slots` (a power of two, at most half full), lies more than 1000 slots past its
 * hash: the keys were crafted to collide. Among 16 million ordinary keys the longest distance is some hundred. */
static inline bool lm_is_crowded(size_t position, uint64_t hash, size_t slots) {
  return ((position - (size_t)hash) & (slots - 1)) > 1000;
}

typedef struct lm_vocabulary {
  char *text; /* texts of all tokens, concatenated */
  size_t bytes, text_capacity;
  struct lm_word {
    size_t at, n;
    int32_t id;
  } * word; /* words in order of addition */
  size_t count, word_capacity;
  int32_t *slot; /* hash table of indices into word, or -1 */
  size_t slots;
  int32_t *by_id; /* index into word for each id, or -1 */
  int32_t ids;    /* the greatest id + 1 */
} lm_vocabulary;

/* Adds a token, copying its text; a text that is added twice gets the later id. */
LM_API lm_status lm_vocabulary_add(lm_vocabulary *v, const char *text, size_t n, int32_t id);
/* Builds the table of ids after the last addition. Fails if the greatest id far exceeds the number of tokens. */
lm_status lm_vocabulary_close(lm_vocabulary *v);
void lm_vocabulary_free(lm_vocabulary *v);
int32_t lm_vocabulary_find(const lm_vocabulary *v, const char *text, size_t n); /* the id, or -1 */
/* Returns the text of an id and its bytes in *n, or NULL. The vocabulary owns the text, which has no closing NUL. */
const char *lm_vocabulary_text(const lm_vocabulary *v, int32_t id, size_t *n);

/* A double-array trie (Aoe 1989): child c of node i is node base[i] + c if its check is i. */
typedef struct lm_trie {
  struct lm_trie_node {
    int32_t base, check, id; /* id: -1 if no word ends here */
  } * node;
  size_t n, capacity;
} lm_trie;

typedef struct lm_trie_key {
  const char *text;
  size_t n;
  int32_t id, order;
} lm_trie_key;

/* Builds t from n keys, which it sorts; of equal texts the key with the greatest order counts. Skips empty texts. */
lm_status lm_trie_build(lm_trie *t, lm_trie_key *keys, size_t n);
void lm_trie_free(lm_trie *t);
/* Returns the child of `node` for `byte`, or -1; the root is 0. */
static inline int32_t lm_trie_step(const lm_trie *t, int32_t node, char byte) {
  size_t next = (size_t)t->node[node].base + (unsigned char)byte;
  return next < t->n && t->node[next].check == node ? (int32_t)next : -1;
}
