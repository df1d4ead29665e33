/* Keeps free memory blocks in treaps: ordered by size, then address, and balanced by a hash of the address. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct lm_arena;

typedef struct lm_block { /* a part of a segment (segments.c) */
  char *p;
  size_t size;
  uint64_t pending; /* while free: other streams that may still use it (bits of lm_used) */
  struct lm_arena *arena;
  uint8_t stream;
  bool small, free;
  uint32_t priority;               /* treap priority */
  struct lm_block *before, *after; /* neighbors in its segment */
  struct lm_block *left, *right;   /* while free: children in the tree */
  struct lm_block *next;           /* in use: next of its hash bucket; unused node: next spare */
} lm_block;

static inline uint32_t lm_address_hash(const void *p) { return (uint32_t)lm_hash_number(LM_NO_HASH, (uintptr_t)p); }

void lm_block_tree_add(lm_block **root, lm_block *b);
void lm_block_tree_remove(lm_block **root, lm_block *b); /* b must be in the tree */
/* Returns the smallest block of at least `size` bytes; NULL if there is none. */
lm_block *lm_block_tree_fit(lm_block *root, size_t size);
