/* Allocates tensor headers and storages from bounded per-thread free lists, so that making and dropping a small result
 * takes no lock and calls no allocator. Internal to tensor/. */
#pragma once

#include "tensor/tensor.h"

/* Returns a header with one reference and no storage or grad, not a number; the caller sets sizes and dtype. Returns
 * NULL when out of memory, with the message recorded. */
lm_tensor *lm_header_take(void);
void lm_header_put(lm_tensor *t);

/* Returns a private storage with one reference, version 0 and no data; NULL, with a message, when out of memory. */
lm_storage *lm_storage_take(void);
void lm_storage_put(lm_storage *s);
