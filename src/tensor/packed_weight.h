/* Keeps what kernels make of tensors that are operands of many calls, such as a plan's weights in panels: with the
 * tensor's storage, while somebody asks for it. */
#pragma once

#include <string.h>

#include "tensor/tensor.h"

enum { LM_PACKED_WEIGHT_KEY = 16 };

/* Kernels that have forms of their own. */
enum { LM_PACKED_WEIGHT_PANELS, LM_PACKED_WEIGHT_DIRECT, LM_PACKED_WEIGHT_DEPTHWISE };

/* A form of some memory: its address, and numbers: the kernel, and what decides the layout. Others are 0. */
typedef struct lm_packed_weight_key {
  const void *data;
  int64_t number[LM_PACKED_WEIGHT_KEY];
} lm_packed_weight_key;

/* Memory for a form, which the block owns: LM_PACKED_WEIGHT form = {0}. */
typedef struct lm_packed_weight {
  char *data;
  bool is_ready;       /* true if it holds the form; else the kernel writes it, and calls lm_packed_weight_put */
  lm_tensor *memory;   /* owned */
  lm_storage *storage; /* borrowed; NULL: the form is not kept */
  struct lm_packed_weight_entry *added; /* the storage's next entry, until that has it */
} lm_packed_weight;

#define LM_PACKED_WEIGHT __attribute__((cleanup(lm_packed_weight_release))) lm_packed_weight
void lm_packed_weight_release(lm_packed_weight *form);

/* Makes kernels keep forms of the storage's memory, and retains it, until lm_packed_weight_drop has been called as
 * often. */
void lm_packed_weight_keep(lm_storage *s);
void lm_packed_weight_drop(lm_storage *s); /* s may be NULL */

/* Returns true if kernels keep forms of t's memory. t may be NULL. */
static inline bool lm_packed_weight_is_kept(const lm_tensor *t) {
  return t && atomic_load_explicit(&t->storage->packed_weight_users, memory_order_relaxed) > 0;
}

/* Finds the form of t's memory, or allocates `bytes` for it. t may be NULL. LM_E_OOM. */
lm_status lm_packed_weight_take(const lm_tensor *t, const lm_packed_weight_key *key, size_t bytes,
                                lm_packed_weight *form);
/* Keeps the form, now that the kernel has written it, if its tensor's forms are kept. */
void lm_packed_weight_put(lm_packed_weight *form);
