/* Tokens by their texts, in two ways: a table of hashes for whole texts, and a trie for the beginnings of a text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* Whether a place of a table of `slots`, a power of two that is at most half full, lies so far from where the hash
 * points that the keys were made for it: of 16 million others some hundred positions are the most. */
static inline bool lm_is_crowded(size_t position, uint64_t hash, size_t slots) {
  return ((position - (size_t)hash) & (slots - 1)) > 1000;
}

typedef struct lm_vocabulary {
  char *text; /* of all tokens, one after the other */
  size_t bytes, text_capacity;
  struct lm_word {
    size_t at, n;
    int32_t id;
  } * word; /* in the order they were added */
  size_t count, word_capacity;
  int32_t *slot; /* by hash: a word or -1 */
  size_t slots;
  int32_t *by_id; /* the word of an id or -1 */
  int32_t ids;    /* above all of them */
} lm_vocabulary;

/* A text twice: the later id counts for it. */
LM_API lm_status lm_vocabulary_add(lm_vocabulary *v, const char *text, size_t n, int32_t id);
/* When all are added: ids can be looked up. An error if ids lie so far apart that the table of them would be large. */
lm_status lm_vocabulary_close(lm_vocabulary *v);
void lm_vocabulary_free(lm_vocabulary *v);
int32_t lm_vocabulary_find(const lm_vocabulary *v, const char *text, size_t n); /* the id, or -1 */
/* NULL if there is none. */
const char *lm_vocabulary_text(const lm_vocabulary *v, int32_t id, size_t *n);

/* A double array (Aoe 1989): child c of node i is node base[i] + c if its check is i. */
typedef struct lm_trie {
  struct lm_trie_node {
    int32_t base, check, id; /* id: -1 where no word ends */
  } * node;
  size_t n, capacity;
} lm_trie;

typedef struct lm_trie_key {
  const char *text;
  size_t n;
  int32_t id, order;
} lm_trie_key;

/* Sorts the keys; of equal texts that of the greatest order counts. Empty ones are left out. */
lm_status lm_trie_build(lm_trie *t, lm_trie_key *keys, size_t n);
void lm_trie_free(lm_trie *t);
/* The node after `byte`, or -1; the root is 0. */
static inline int32_t lm_trie_step(const lm_trie *t, int32_t node, char byte) {
  size_t next = (size_t)t->node[node].base + (unsigned char)byte;
  return next < t->n && t->node[next].check == node ? (int32_t)next : -1;
}
