/* Where the memory of tensors comes from: while LM_TRACE_LIVE_MEMORY is on, each storage that is made is noted with the
 * script's line and the op, until it goes. */
#pragma once

#include "base/log.h"
#include "tensor/tensor.h"

/* Of a storage that was just made, and of one about to go; while spans are recorded or memory is noted. */
void lm_memory_allocated(const lm_storage *s);
void lm_memory_freed(const lm_storage *s);

typedef struct lm_live_memory {
  const char *line, *op; /* interned or static; may be NULL */
  lm_device device;
  size_t bytes;
  double seconds; /* lm_seconds when it was made */
} lm_live_memory;

/* A history starts empty at each start. */
LM_API void lm_memory_history_set(bool on);
LM_API bool lm_memory_history_on(void);
/* What lives now, of what was made since; a list of yours to lm_free. missed: how many there was no memory to note. */
LM_API lm_status lm_memory_history(size_t *n, lm_live_memory **out, size_t *missed);
