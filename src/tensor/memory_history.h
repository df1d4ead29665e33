/* Records where tensors were allocated: while LM_TRACE_LIVE_MEMORY is on, each live storage is listed with the script's
 * line and the op. */
#pragma once

#include "base/log.h"
#include "tensor/tensor.h"

/* Report a new storage, and one about to be freed; called while spans or live memory are recorded. */
void lm_memory_allocated(const lm_storage *s);
void lm_memory_freed(const lm_storage *s);

typedef struct lm_live_memory {
  const char *line, *op; /* interned or static; may be NULL */
  lm_device device;
  size_t bytes;
  double seconds; /* lm_seconds at its allocation */
} lm_live_memory;

/* Turns recording on or off; clears the record. */
LM_API void lm_memory_history_set(bool on);
LM_API bool lm_memory_history_on(void);
/* Lists the n live storages recorded; the caller frees *out by lm_free. missed: number not recorded, out of memory. */
LM_API lm_status lm_memory_history(size_t *n, lm_live_memory **out, size_t *missed);
