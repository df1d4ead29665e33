/* Free blocks of memory as trees: ordered by size, then address, and balanced by a hash of the address (treaps). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct lm_arena;

typedef struct lm_block { /* of a segment (segments.c) */
  char *p;
  size_t size;
  uint64_t pending; /* while free: streams that may still use it, beside its own (bits of lm_used) */
  struct lm_arena *arena;
  uint8_t stream;
  bool small, free;
  uint32_t priority;               /* in its tree */
  struct lm_block *before, *after; /* in its segment */
  struct lm_block *left, *right;   /* while free: in a tree */
  struct lm_block *next;           /* in use: of the same bucket; else a spare one */
} lm_block;

static inline uint32_t lm_address_hash(const void *p) { return (uint32_t)lm_hash_number(LM_NO_HASH, (uintptr_t)p); }

void lm_block_tree_add(lm_block **root, lm_block *b);
void lm_block_tree_remove(lm_block **root, lm_block *b); /* it must be there */
/* The smallest of at least `size`; NULL if there is none. */
lm_block *lm_block_tree_fit(lm_block *root, size_t size);
