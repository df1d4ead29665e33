/* Keeps what kernels make of tensors that are operands of many calls, such as a plan's weights in panels: with the
 * tensor's storage, while somebody asks for it. */
#pragma once

#include <string.h>

#include "tensor/tensor.h"

enum { LM_PREPACK_KEY = 16 };

/* Kernels that have forms of their own. */
enum { LM_PREPACK_PANELS, LM_PREPACK_DIRECT, LM_PREPACK_DEPTHWISE };

/* A form of some memory: its address, and numbers: the kernel, and what decides the layout. Others are 0. */
typedef struct lm_prepack_key {
  const void *data;
  int64_t number[LM_PREPACK_KEY];
} lm_prepack_key;

/* Memory for a form, which the block owns: LM_PREPACK form = {0}. */
typedef struct lm_prepack {
  char *data;
  bool is_ready;                  /* true if it holds the form; else the kernel writes it, and calls lm_prepack_put */
  lm_tensor *memory;              /* owned */
  lm_storage *storage;            /* borrowed; NULL: the form is not kept */
  struct lm_prepack_entry *added; /* the storage's next entry, until that has it */
} lm_prepack;

#define LM_PREPACK __attribute__((cleanup(lm_prepack_release))) lm_prepack
void lm_prepack_release(lm_prepack *form);

/* Makes kernels keep forms of the storage's memory, and retains it, until lm_prepack_drop was called as often. */
void lm_prepack_keep(lm_storage *s);
void lm_prepack_drop(lm_storage *s); /* s may be NULL */

/* Returns true if kernels keep forms of t's memory. t may be NULL. */
static inline bool lm_prepack_is_kept(const lm_tensor *t) {
  return t && atomic_load_explicit(&t->storage->prepack_users, memory_order_relaxed) > 0;
}

/* Finds the form of t's memory, or allocates `bytes` for it. t may be NULL. LM_E_OOM. */
lm_status lm_prepack_take(const lm_tensor *t, const lm_prepack_key *key, size_t bytes, lm_prepack *form);
/* Adds a form, which the kernel has written, to those of its storage if these are kept. */
void lm_prepack_put(lm_prepack *form);
