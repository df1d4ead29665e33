#include "device/block_tree.h"

static bool is_less(const lm_block *a, const lm_block *b) {
  return a->size != b->size ? a->size < b->size : a->p < b->p;
}

void lm_block_tree_add(lm_block **at, lm_block *b) {
  b->priority = lm_address_hash(b->p);
  while (*at && (*at)->priority >= b->priority) at = is_less(*at, b) ? &(*at)->right : &(*at)->left;
  lm_block *rest = *at, **left = &b->left, **right = &b->right;
  *at = b;
  while (rest) {
    if (is_less(rest, b)) {
      *left = rest;
      left = &rest->right;
      rest = rest->right;
    } else {
      *right = rest;
      right = &rest->left;
      rest = rest->left;
    }
  }
  *left = *right = NULL;
}

void lm_block_tree_remove(lm_block **at, lm_block *b) {
  while (*at != b) at = is_less(*at, b) ? &(*at)->right : &(*at)->left;
  lm_block *left = b->left, *right = b->right;
  while (left && right) {
    if (left->priority > right->priority) {
      *at = left;
      at = &left->right;
      left = left->right;
    } else {
      *at = right;
      at = &right->left;
      right = right->left;
    }
  }
  *at = left ? left : right;
}

lm_block *lm_block_tree_fit(lm_block *t, size_t size) {
  lm_block *best = NULL;
  while (t) {
    if (t->size >= size) best = t;
    t = t->size >= size ? t->left : t->right;
  }
  return best;
}
