/* A whole file, plain or gzipped, as bytes. */
#ifndef LM_DATA_BYTES_OF_H
#define LM_DATA_BYTES_OF_H

#include "tensor/tensor.h"

/* uint8 [n] on the CPU. LM_E_IO names the file. */
LM_API lm_status lm_bytes_of(const char *path, lm_tensor **out);

#endif
