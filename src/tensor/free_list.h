/* Tensor headers and storages come from bounded per-thread free lists: making and dropping a small
 * result touches no lock and no allocator. Internal to tensor/. */
#pragma once

#include "tensor/tensor.h"

/* One reference, no storage, no grad, not a number; sizes and dtype are the caller's to fill.
 * NULL when out of memory, with the message recorded. */
lm_tensor *lm_header_take(void);
void lm_header_put(lm_tensor *t);

/* One reference, version 0, no data, nobody else's. NULL as above. */
lm_storage *lm_storage_take(void);
void lm_storage_put(lm_storage *s);
