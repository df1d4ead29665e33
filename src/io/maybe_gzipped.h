/* Files that may be gzipped. */
#pragma once

#include "tensor/tensor.h"

/* *out: uint8 [n], the file's bytes, unpacked if it is gzipped. */
LM_API lm_status lm_read_unpacked(const char *path, lm_tensor **out);
