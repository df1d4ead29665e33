/* Files as they are: tensors of their bytes. */
#pragma once

#include "tensor/tensor.h"

/* *out: uint8 [n], the file's bytes. */
LM_API lm_status lm_read_whole(const char *path, lm_tensor **out);
/* Whole or not at all (io/atomic_write.h). */
LM_API lm_status lm_write_whole(const char *path, const void *bytes, size_t n);
