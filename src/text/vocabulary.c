#include "text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_WORDS = 1 << 24, MAX_IDLE_IDS = 1 << 16, MAX_BYTES = 1 << 16 };

static int32_t *slot_of(const lm_vocabulary *v, const char *text, size_t n) {
  size_t mask = v->slots - 1, i = lm_hash(LM_NO_HASH, text, n) & mask;
  for (; v->slot[i] >= 0; i = (i + 1) & mask) {
    const struct lm_word *w = &v->word[v->slot[i]];
    if (w->n == n && memcmp(v->text + w->at, text, n) == 0) break;
  }
  return &v->slot[i];
}

static bool grow_slots(lm_vocabulary *v) {
  size_t slots = v->slots ? 2 * v->slots : 256;
  int32_t *new_slots = lm_malloc(slots * sizeof *new_slots);
  if (!new_slots) return false;
  lm_free(v->slot);
  v->slot = new_slots;
  v->slots = slots;
  memset(new_slots, 0xff, slots * sizeof *new_slots);
  for (size_t i = 0; i < v->count; i++) *slot_of(v, v->text + v->word[i].at, v->word[i].n) = (int32_t)i;
  return true;
}

lm_status lm_vocabulary_add(lm_vocabulary *v, const char *text, size_t n, int32_t id) {
  if (v->count >= MAX_WORDS) return lm_fail(LM_E_ARG, "a vocabulary must have at most %d tokens", MAX_WORDS);
  if (n > MAX_BYTES) return lm_fail(LM_E_ARG, "a token must have at most %d bytes, got %zu", MAX_BYTES, n);
  if (v->count * 2 >= v->slots && !grow_slots(v)) return LM_E_OOM;
  if (!lm_list_grow(&v->text, &v->text_capacity, v->bytes + n, 1) ||
      !lm_list_grow(&v->word, &v->word_capacity, v->count + 1, sizeof *v->word)) {
    return LM_E_OOM;
  }
  int32_t *slot = slot_of(v, text, n);
  if (lm_is_crowded((size_t)(slot - v->slot), lm_hash(LM_NO_HASH, text, n), v->slots)) {
    return lm_fail(LM_E_ARG, "token '%s' has the same hash as a thousand others", lm_ellipsize(text, 40));
  }
  if (n) memcpy(v->text + v->bytes, text, n);
  v->word[v->count] = (struct lm_word){v->bytes, n, id};
  *slot = (int32_t)v->count++;
  v->bytes += n;
  return LM_OK;
}

lm_status lm_vocabulary_close(lm_vocabulary *v) {
  v->ids = 0;
  for (size_t i = 0; i < v->count; i++) {
    if (v->word[i].id >= v->ids) v->ids = v->word[i].id + 1;
  }
  if ((size_t)v->ids > 4 * v->count + MAX_IDLE_IDS) {
    return lm_fail(LM_E_ARG, "ids of %zu tokens must be near that number, got %d", v->count, v->ids - 1);
  }
  lm_free(v->by_id);
  v->by_id = lm_malloc((size_t)v->ids * sizeof *v->by_id);
  if (!v->by_id || (!v->slots && !grow_slots(v))) return LM_E_OOM;
  memset(v->by_id, 0xff, (size_t)v->ids * sizeof *v->by_id);
  for (size_t i = 0; i < v->count; i++) v->by_id[v->word[i].id] = (int32_t)i;
  return LM_OK;
}

void lm_vocabulary_free(lm_vocabulary *v) {
  lm_free(v->text);
  lm_free(v->word);
  lm_free(v->slot);
  lm_free(v->by_id);
  *v = (lm_vocabulary){0};
}

int32_t lm_vocabulary_find(const lm_vocabulary *v, const char *text, size_t n) {
  int32_t i = v->slots ? *slot_of(v, text, n) : -1;
  return i < 0 ? -1 : v->word[i].id;
}

const char *lm_vocabulary_text(const lm_vocabulary *v, int32_t id, size_t *n) {
  if (id < 0 || id >= v->ids || v->by_id[id] < 0) return NULL;
  const struct lm_word *w = &v->word[v->by_id[id]];
  *n = w->n;
  return v->text + w->at;
}

/* ---- the trie */
void lm_trie_free(lm_trie *t) {
  lm_free(t->node);
  *t = (lm_trie){0};
}

static int compare_texts(const void *a, const void *b) {
  const lm_trie_key *x = a, *y = b;
  size_t n = x->n < y->n ? x->n : y->n;
  int order = memcmp(x->text, y->text, n);
  return order ? order : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->order < y->order ? -1 : 1;
}

enum { FREE = -1, ROOT = -2, TRIES = 64, STEPS = 4096 };

static bool grow_nodes(lm_trie *t, size_t n) {
  if (!lm_list_grow(&t->node, &t->capacity, n, sizeof *t->node)) return false;
  for (; t->n < n; t->n++) t->node[t->n] = (struct lm_trie_node){0, FREE, -1};
  return true;
}

/* Returns a base with free nodes for all children, or -1 if out of memory. Few nodes below *hint are free. */
static int64_t find_base(lm_trie *t, const unsigned char *child, int children, size_t *hint) {
  while (*hint < t->n && t->node[*hint].check != FREE) ++*hint;
  size_t base = t->n, at = *hint > child[0] ? *hint : child[0];
  int tries = 0, steps = 0;
  for (; at < t->n && tries < TRIES && steps < STEPS; at++, steps++) {
    if (t->node[at].check != FREE) continue;
    tries++;
    bool fits = true;
    size_t from = at - child[0];
    for (int i = 1; i < children && fits; i++) {
      fits = from + child[i] >= t->n || t->node[from + child[i]].check == FREE;
    }
    if (fits) {
      base = from;
      break;
    }
  }
  if (steps == STEPS || (tries == TRIES && children < 16)) *hint = at;
  return grow_nodes(t, base + 256) ? (int64_t)base : -1;
}

typedef struct lm_branch { /* keys from .. to - 1 agree on `depth` bytes */
  int32_t node;
  size_t from, to, depth;
} lm_branch;

lm_status lm_trie_build(lm_trie *t, lm_trie_key *keys, size_t n) {
  lm_status status = LM_OK;
  lm_branch *stack = NULL;
  size_t capacity = 0, depth = 0, hint = 1;
  qsort(keys, n, sizeof *keys, compare_texts);
  if (!grow_nodes(t, 1) || !lm_list_grow(&stack, &capacity, 1, sizeof *stack)) TRY(LM_E_OOM);
  t->node[0].check = ROOT;
  stack[depth++] = (lm_branch){0, 0, n, 0};
  while (depth > 0) {
    lm_branch b = stack[--depth];
    while (b.from < b.to && keys[b.from].n == b.depth) {
      if (b.depth > 0) t->node[b.node].id = keys[b.from].id;
      b.from++;
    }
    if (b.from == b.to) {
      t->node[b.node].base = INT32_MAX; /* a leaf */
      continue;
    }
    unsigned char child[256];
    size_t first[257];
    int children = 0;
    for (size_t i = b.from; i < b.to; i++) {
      unsigned char c = (unsigned char)keys[i].text[b.depth];
      if (children == 0 || child[children - 1] != c) {
        child[children] = c;
        first[children++] = i;
      }
    }
    first[children] = b.to;
    int64_t base = find_base(t, child, children, &hint);
    if (base < 0 || base > INT32_MAX / 2 || !lm_list_grow(&stack, &capacity, depth + (size_t)children, sizeof *stack)) {
      TRY(lm_fail(LM_E_OOM, "out of memory: a vocabulary of %zu tokens", n));
    }
    t->node[b.node].base = (int32_t)base;
    for (int i = 0; i < children; i++) t->node[base + child[i]].check = b.node;
    for (int i = 0; i < children; i++) {
      stack[depth++] = (lm_branch){(int32_t)base + child[i], first[i], first[i + 1], b.depth + 1};
    }
  }
done:
  lm_free(stack);
  if (status != LM_OK) lm_trie_free(t);
  return status;
}
