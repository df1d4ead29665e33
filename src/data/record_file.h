/* Finds and reads the records of a file in place by pread, so that all workers share the system's cache of the file. */
#pragma once

#include "io/file.h"

/* Returns the offset of each line that is not blank and the file's end, int64 [lines + 1]. */
LM_API lm_status lm_file_lines(lm_file *f, lm_tensor **out);
/* The blocks of a token file: block i, from 1, begins (i - 1) * stride tokens after byte `from`. */
typedef struct lm_blocks {
  const char *dtype; /* "uint8", "int16", "uint16", "int32", "uint32", "int64" */
  int64_t from, size, stride;
  int64_t base;  /* added to each token */
  int64_t below; /* LM_E_IO names a token that is not from 0 to below - 1; 0: no check */
} lm_blocks;
/* Reads the blocks of `index` (contiguous int64 [n]) as x and y, int64 [n, size]; y begins one token later. */
LM_API lm_status lm_file_blocks(lm_file *f, const lm_blocks *b, lm_tensor *index, lm_tensor **x, lm_tensor **y);
