/* What a file of records has where. Files are read in place by pread, so that the system's cache of the file is what
 * all workers share. */
#pragma once

#include "io/file.h"

/* int64 [lines + 1]: where each line begins that is more than white space, and the file's end. */
LM_API lm_status lm_file_lines(lm_file *f, lm_tensor **out);
/* Blocks of a file of tokens: block i, from 1, begins (i - 1) * stride tokens after byte `from`. */
typedef struct lm_blocks {
  const char *dtype; /* "uint8", "int16", "uint16", "int32", "uint32", "int64" */
  int64_t from, size, stride;
  int64_t base;  /* is added to each token */
  int64_t below; /* LM_E_IO names a token that is not from 0 to below - 1; 0: any will do */
} lm_blocks;
/* Bytes of such a token; 0 if it is none of them. */
LM_API int64_t lm_token_bytes(const char *dtype);
/* index: int64 [n], contiguous. x and y: int64 [n, size], y begins one token later. */
LM_API lm_status lm_file_blocks(lm_file *f, const lm_blocks *b, lm_tensor *index, lm_tensor **x, lm_tensor **y);
