/* A file of records, read in place: what lies where is known, and any part of it is asked for at any time. It is read
 * by pread, so that the system's cache of the file is what all workers share, and a file that is cut down or written to
 * meanwhile is an error, where a mapping would end the process. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_source lm_source;

LM_API lm_status lm_source_open(const char *path, lm_source **out);
LM_API void lm_source_close(lm_source *s);
LM_API int64_t lm_source_bytes(const lm_source *s);
/* Its size and time of writing as text: what distinguishes a file from one that took its place. */
LM_API const char *lm_source_stamp(const lm_source *s);

/* n bytes from byte `at` (from 0) on, borrowed until the next call. LM_E_IO if the file has changed. */
LM_API lm_status lm_source_read(lm_source *s, int64_t at, int64_t n, const char **out);

/* int64 [lines + 1]: where each line begins that is more than white space, and the file's end. */
LM_API lm_status lm_source_lines(lm_source *s, lm_tensor **out);
/* Which line, from 1, byte `at` is on. */
LM_API lm_status lm_source_line_of(lm_source *s, int64_t at, int64_t *line);

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
LM_API lm_status lm_source_blocks(lm_source *s, const lm_blocks *b, lm_tensor *index, lm_tensor **x, lm_tensor **y);
